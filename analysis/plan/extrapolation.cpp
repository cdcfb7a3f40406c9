#include "analysis/plan/extrapolation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "analysis/trace/trace.h"
#include "kernels/base/views.h"
#include "schemes/statistics.h"

namespace sparsesync {
namespace {

/// Counts how many of a step's first `workers` touched each row of a range.
std::vector<CountedRow> counted_rows(const OwnedIndexSets& sets, int workers, IndexRange range) {
  TouchCounts counts;
  std::vector<CountedRow> once;
  for (std::size_t worker = 0; worker < static_cast<std::size_t>(workers); ++worker) {
    once.clear();
    for (const Index row : indices_in(sets[worker], range)) once.push_back({row, 1});
    counts.add(once);
  }
  const std::span<const CountedRow> all = counts.rows();
  return {all.begin(), all.end()};
}

/// Fits the growth of the union in a range of rows, from the first `workers` of each step.
UnionGrowth growth_of(const std::vector<OwnedIndexSets>& steps, int workers, IndexRange range) {
  std::vector<CountedRow> in_steps;
  TouchCounts over_steps;
  for (const OwnedIndexSets& sets : steps) {
    const std::vector<CountedRow> in_step = counted_rows(sets, workers, range);
    in_steps.insert(in_steps.end(), in_step.begin(), in_step.end());
    over_steps.add(in_step);
  }
  return {range.end - range.begin,
          {counts_of_counts(in_steps), workers},
          static_cast<int>(steps.size()),
          {counts_of_counts(over_steps.rows()), std::int64_t{workers} * std::ssize(steps)}};
}

/// Counts how often each row was touched over all steps and workers.
std::vector<CountedRow> counted_rows(const std::vector<OwnedIndexSets>& steps, Index rows) {
  TouchCounts counts;
  for (const OwnedIndexSets& sets : steps) {
    counts.add(counted_rows(sets, static_cast<int>(sets.size()), {0, rows}));
  }
  const std::span<const CountedRow> all = counts.rows();
  return {all.begin(), all.end()};
}

/// Limit of blocks per row. For wider rows, block_statistics() estimates the blocks well enough
/// from the touched rows.
constexpr Index kMostBlocksOfARow = 64;

int an_eighth(int workers) {
  return std::max(1, workers / 8);
}

/// Calls `body` with the sets of every aligned group of workers at every step, and the group's
/// weight in the mean. An incomplete last group is left out.
/// @param workers  size of a group; at most the steps' number of workers
template <typename Body>
void for_each_aligned_group(const std::vector<OwnedIndexSets>& steps, int workers, Body&& body) {
  const auto size = static_cast<std::ptrdiff_t>(workers);
  const std::ptrdiff_t groups = std::ssize(steps.front()) / size;
  const double share = 1.0 / static_cast<double>(groups * std::ssize(steps));
  for (const OwnedIndexSets& sets : steps) {
    for (auto begin = sets.begin(); sets.end() - begin >= size; begin += size) {
      body(IndexSets{begin, begin + size}, share);
    }
  }
}

/// An even range of rows, and the sum of a weight over its rows.
struct WeighedRange {
  IndexRange range;
  double weight = 0;
};

/// Returns the even range with the largest sum of `weight` over its rows.
template <typename Weight>
WeighedRange heaviest_range(std::span<const CountedRow> rows, const EvenRanges& ranges,
                            Weight&& weight) {
  WeighedRange heaviest{ranges.range(0), 0};
  WeighedRange summed = heaviest;
  for (const CountedRow& each : rows) {
    if (each.row >= summed.range.end) summed = {ranges.range(ranges.part_of(each.row)), 0};
    summed.weight += weight(each);
    if (summed.weight > heaviest.weight) heaviest = summed;
  }
  return heaviest;
}

}  // namespace

SpaceOutlook::SpaceOutlook(Index rows, std::vector<OwnedIndexSets> steps)
    : rows_(rows),
      steps_(std::move(steps)),
      counted_(counted_rows(steps_, rows)),
      growth_(growth_of(steps_, known_workers(), {0, rows})),
      growth_from_an_eighth_(growth_of(steps_, an_eighth(known_workers()), {0, rows})) {
  double squares = 0;
  const double samples = this->samples();
  for (const OwnedIndexSets& sets : steps_) {
    for (const std::vector<Index>& set : sets) {
      const auto touched = static_cast<double>(set.size());
      touched_mean_ += touched / samples;
      squares += touched * touched / samples;
    }
  }
  for (int group = 1; group <= known_workers(); group *= 2) {
    united_of_doublings_.push_back(united_in_aligned_groups(group));
  }
  touched_stdev_ = std::sqrt(std::max(0.0, squares - touched_mean_ * touched_mean_));
}

double SpaceOutlook::united_in_aligned_groups(int workers) const {
  double united = 0;
  for_each_aligned_group(steps_, workers, [&](const IndexSets& sets, double share) {
    united += share * static_cast<double>(united_rows(sets).size());
  });
  return united;
}

double SpaceOutlook::united(int workers) const {
  if (workers > known_workers()) return growth_.united(workers);
  const auto size = static_cast<unsigned>(workers);
  return std::has_single_bit(size)
             ? united_of_doublings_[static_cast<std::size_t>(std::countr_zero(size))]
             : united_in_aligned_groups(workers);
}

SpaceStatistics SpaceOutlook::statistics(int workers) const {
  return workers <= known_workers() ? seen(workers) : expected(workers);
}

SpaceStatistics SpaceOutlook::seen(int workers) const {
  SpaceStatistics mean;
  mean.push_skewness = 0;
  mean.pull_skewness = 0;
  for_each_aligned_group(steps_, workers, [&](const IndexSets& sets, double share) {
    add_share(mean, statistics_of(sets, rows_), share);
  });
  return mean;
}

SpaceStatistics SpaceOutlook::expected(int workers) const {
  SpaceStatistics statistics;
  statistics.touched_mean = touched_mean_;
  statistics.united = united(workers);
  statistics.touched_max = std::min(
      statistics.united, touched_mean_ + touched_stdev_ * expected_largest_normal(workers));
  const double alone = statistics.united - united(workers - 1);
  statistics.sent_at_least = statistics.touched_max + (workers - 2) * alone;
  for (int group = 1; group < workers; group *= 2) {
    statistics.united_in_groups.push_back(group == 1 ? statistics.touched_max : united(group));
  }
  if (counted_.empty()) return statistics;
  const EvenRanges ranges(rows_, workers);
  const auto touches = [](const CountedRow& each) { return static_cast<double>(each.touches); };
  const double pushed = heaviest_range(counted_, ranges, touches).weight;
  statistics.push_skewness = std::max(1.0, workers * pushed / (touched_mean_ * samples()));
  const auto once = [](const CountedRow&) { return 1.0; };
  const IndexRange fullest = heaviest_range(counted_, ranges, once).range;
  const double pulled = growth_of(steps_, known_workers(), fullest).united(workers);
  statistics.pull_skewness = std::max(1.0, workers * pulled / statistics.united);
  return statistics;
}

Outlook::Outlook(const Trace& trace, const SchemeOptions& options, std::int64_t most_touches)
    : spaces_(row_spaces(trace.header().tensors)) {
  std::vector<std::vector<OwnedIndexSets>> of_spaces(spaces_.size());
  const auto look_at = [&](std::int64_t step) {
    std::vector<OwnedIndexSets> sets =
        space_sets(tensor_sets(trace, static_cast<int>(step)), spaces_);
    std::int64_t touches = 0;
    for (std::size_t space = 0; space < spaces_.size(); ++space) {
      for (const std::vector<Index>& set : sets[space]) touches += std::ssize(set);
      of_spaces[space].push_back(std::move(sets[space]));
    }
    return touches;
  };
  constexpr std::int64_t kMostSteps = 256;
  const std::int64_t all = trace.header().steps;
  const std::int64_t affordable = most_touches / std::max<std::int64_t>(look_at(0), 1);
  const std::int64_t steps = std::clamp<std::int64_t>(affordable, 1, std::min(all, kMostSteps));
  for (std::int64_t i = 1; i < steps; ++i) look_at(i * all / steps);
  for (std::size_t space = 0; space < spaces_.size(); ++space) {
    std::optional<SpaceOutlook>& of_blocks = block_outlooks_.emplace_back();
    if (options.block > 0 && spaces_[space].width <= kMostBlocksOfARow * options.block) {
      std::vector<OwnedIndexSets> blocks;
      for (const OwnedIndexSets& sets : of_spaces[space]) {
        blocks.push_back(block_sets(views_of(sets), spaces_[space], options.block));
      }
      of_blocks.emplace(block_space(spaces_[space], options.block).rows, std::move(blocks));
    }
    outlooks_.emplace_back(spaces_[space].rows, std::move(of_spaces[space]));
  }
}

Statistics Outlook::statistics(int workers) const {
  Statistics statistics;
  for (std::size_t space = 0; space < outlooks_.size(); ++space) {
    statistics.push_back(outlooks_[space].statistics(workers));
    if (block_outlooks_[space]) {
      statistics.back().blocks.push_back(block_outlooks_[space]->statistics(workers));
    }
  }
  return statistics;
}

double Outlook::densification(int workers) const {
  return densification_by(&SpaceOutlook::united, workers);
}

double Outlook::densification_from_an_eighth(int workers) const {
  return densification_by(&SpaceOutlook::united_from_an_eighth, workers);
}

int Outlook::eighth_of_workers() const {
  return an_eighth(known_workers());
}

double Outlook::densification_by(double (SpaceOutlook::*united)(int) const, int workers) const {
  double all = 0;
  double of_one = 0;
  for (std::size_t space = 0; space < spaces_.size(); ++space) {
    const auto row_bytes = static_cast<double>(spaces_[space].row_bytes());
    all += row_bytes * (outlooks_[space].*united)(workers);
    of_one += row_bytes * (outlooks_[space].*united)(1);
  }
  return of_one > 0 ? all / of_one : 1;
}

}  // namespace sparsesync
