#include "analysis/outlook.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/space_sets.h"
#include "kernels/even_ranges.h"
#include "schemes/block_space.h"

namespace sparsesync {
namespace {

/// How often each row was touched by the first `workers` of a step.
std::vector<CountedRow> counted_rows(const OwnedIndexSets& sets, int workers) {
  TouchCounts counts;
  std::vector<CountedRow> once;
  for (std::size_t worker = 0; worker < static_cast<std::size_t>(workers); ++worker) {
    once.clear();
    for (const Index row : sets[worker]) once.push_back({row, 1});
    counts.add(once);
  }
  const std::span<const CountedRow> all = counts.rows();
  return {all.begin(), all.end()};
}

/// The same of all steps together.
std::vector<CountedRow> counted_rows(const std::vector<OwnedIndexSets>& steps, int workers) {
  TouchCounts counts;
  for (const OwnedIndexSets& sets : steps) counts.add(counted_rows(sets, workers));
  const std::span<const CountedRow> all = counts.rows();
  return {all.begin(), all.end()};
}

UnionGrowth growth_of(Index rows, const std::vector<OwnedIndexSets>& steps, int workers) {
  std::vector<CountedRow> in_steps;
  for (const OwnedIndexSets& sets : steps) {
    const std::vector<CountedRow> in_step = counted_rows(sets, workers);
    in_steps.insert(in_steps.end(), in_step.begin(), in_step.end());
  }
  return {
      rows,
      {counts_of_counts(in_steps), workers},
      static_cast<int>(steps.size()),
      {counts_of_counts(counted_rows(steps, workers)), std::int64_t{workers} * std::ssize(steps)}};
}

int an_eighth(std::size_t workers) {
  return std::max(1, static_cast<int>(workers) / 8);
}

/// Adds a share of statistics that lie side by side.
void add_share(SpaceStatistics& mean, const SpaceStatistics& of, double share) {
  mean.touched_mean += share * of.touched_mean;
  mean.touched_max += share * of.touched_max;
  mean.united += share * of.united;
  mean.push_skewness += share * of.push_skewness;
  mean.pull_skewness += share * of.pull_skewness;
  mean.sent_at_least += share * of.sent_at_least;
  mean.united_in_groups.resize(of.united_in_groups.size());
  for (std::size_t i = 0; i < of.united_in_groups.size(); ++i) {
    mean.united_in_groups[i] += share * of.united_in_groups[i];
  }
}

/// The sum of `weight` over the rows of the even range that has most of it.
template <typename Weight>
double fullest_range(std::span<const CountedRow> rows, const EvenRanges& ranges, Weight&& weight) {
  double most = 0;
  double sum = 0;
  Index end = 0;  // of the range that is summed
  for (const CountedRow& each : rows) {
    if (each.row >= end) {
      sum = 0;
      end = ranges.range(ranges.part_of(each.row)).end;
    }
    sum += weight(static_cast<double>(each.touches));
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

SpaceOutlook::SpaceOutlook(Index rows, std::vector<OwnedIndexSets> steps)
    : rows_(rows),
      steps_(std::move(steps)),
      counted_(counted_rows(steps_, known_workers())),
      growth_(growth_of(rows, steps_, known_workers())),
      growth_from_an_eighth_(growth_of(rows, steps_, an_eighth(steps_.front().size()))) {
  double squares = 0;
  const double samples = this->samples();
  for (const OwnedIndexSets& sets : steps_) {
    for (const std::vector<Index>& set : sets) {
      const auto touched = static_cast<double>(set.size());
      touched_mean_ += touched / samples;
      squares += touched * touched / samples;
    }
  }
  touched_stdev_ = std::sqrt(std::max(0.0, squares - touched_mean_ * touched_mean_));
}

SpaceStatistics SpaceOutlook::statistics(int workers) const {
  return workers <= known_workers() ? seen(workers) : expected(workers);
}

SpaceStatistics SpaceOutlook::seen(int workers) const {
  SpaceStatistics mean;
  mean.push_skewness = 0;
  mean.pull_skewness = 0;
  const auto size = static_cast<std::size_t>(workers);
  const std::size_t groups = steps_.front().size() / size;
  const double share = 1.0 / static_cast<double>(groups * steps_.size());
  for (const OwnedIndexSets& sets : steps_) {
    for (std::size_t group = 0; group < groups; ++group) {
      const auto begin = sets.begin() + static_cast<std::ptrdiff_t>(group * size);
      add_share(mean, statistics_of({begin, begin + workers}, rows_), share);
    }
  }
  return mean;
}

SpaceStatistics SpaceOutlook::expected(int workers) const {
  SpaceStatistics statistics;
  statistics.touched_mean = touched_mean_;
  statistics.touched_max =
      std::min(static_cast<double>(rows_),
               touched_mean_ + touched_stdev_ * expected_largest_normal(workers));
  statistics.united = growth_.united(workers);
  const double alone = statistics.united - growth_.united(workers - 1);
  statistics.sent_at_least = statistics.touched_max + (workers - 2) * alone;
  for (int group = 1; group < workers; group *= 2) {
    statistics.united_in_groups.push_back(group == 1 ? statistics.touched_max
                                                     : growth_.united(group));
  }
  if (counted_.empty()) return statistics;
  const EvenRanges ranges(rows_, workers);
  const double samples = this->samples();
  const double touched = touched_mean_ * samples;
  const double pushed = fullest_range(counted_, ranges, [](double times) { return times; });
  statistics.push_skewness = std::max(1.0, workers * pushed / touched);
  const auto in_union = [&](double times) { return 1 - std::pow(1 - times / samples, workers); };
  double known = 0;
  for (const CountedRow& each : counted_) known += in_union(static_cast<double>(each.touches));
  const double united = std::max(statistics.united, known);
  const double pulled = fullest_range(counted_, ranges, in_union) + (united - known) / workers;
  statistics.pull_skewness = std::max(1.0, workers * pulled / united);
  return statistics;
}

Outlook::Outlook(const Trace& trace, const SchemeOptions& options, int most_steps)
    : spaces_(row_spaces(trace.header().tensors)) {
  const TraceHeader& header = trace.header();
  const int steps = std::min(most_steps, header.steps);
  std::vector<std::vector<OwnedIndexSets>> of_spaces(spaces_.size());
  for (int i = 0; i < steps; ++i) {
    const int step = static_cast<int>(std::int64_t{i} * header.steps / steps);
    std::vector<OwnedIndexSets> sets = space_sets(tensor_sets(trace, step), spaces_);
    for (std::size_t space = 0; space < spaces_.size(); ++space) {
      of_spaces[space].push_back(std::move(sets[space]));
    }
  }
  for (std::size_t space = 0; space < spaces_.size(); ++space) {
    if (options.block > 0) {
      std::vector<OwnedIndexSets> blocks;
      for (const OwnedIndexSets& sets : of_spaces[space]) {
        blocks.push_back(block_sets(views_of(sets), spaces_[space], options.block));
      }
      block_outlooks_.emplace_back(block_space(spaces_[space], options.block).rows,
                                   std::move(blocks));
    }
    outlooks_.emplace_back(spaces_[space].rows, std::move(of_spaces[space]));
  }
}

Statistics Outlook::statistics(int workers) const {
  Statistics statistics;
  for (std::size_t space = 0; space < outlooks_.size(); ++space) {
    statistics.push_back(outlooks_[space].statistics(workers));
    if (!block_outlooks_.empty()) {
      statistics.back().blocks.push_back(block_outlooks_[space].statistics(workers));
    }
  }
  return statistics;
}

double Outlook::densification(double workers) const {
  return densification_by(
      [&](const SpaceOutlook& outlook) { return outlook.growth().united(workers); });
}

double Outlook::densification_from_an_eighth(double workers) const {
  return densification_by(
      [&](const SpaceOutlook& outlook) { return outlook.growth_from_an_eighth().united(workers); });
}

}  // namespace sparsesync
