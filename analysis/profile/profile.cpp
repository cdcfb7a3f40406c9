#include "analysis/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "analysis/profile/overlap.h"
#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "schemes/statistics.h"

namespace sparsesync {
namespace {

/// Accumulates the sum, the sum of squares and the bounds of numbers.
struct Moments {
  double count = 0;
  double sum = 0;
  double squares = 0;
  double min = 0;
  double max = 0;

  void add(double number) {
    min = count > 0 ? std::min(min, number) : number;
    max = count > 0 ? std::max(max, number) : number;
    count += 1;
    sum += number;
    squares += number * number;
  }
  double mean() const { return count > 0 ? sum / count : 0; }
  double stdev() const {
    return count > 0 ? std::sqrt(std::max(0.0, squares / count - mean() * mean())) : 0;
  }
};

/// Returns the powers of two up to the number of workers, and that number.
std::vector<int> group_sizes(int workers) {
  std::vector<int> sizes;
  for (int size = 1; size <= workers; size *= 2) sizes.push_back(size);
  if (sizes.back() != workers) sizes.push_back(workers);
  return sizes;
}

std::vector<int> paired_workers(int workers) {
  const int paired = std::min(workers, kMaxPairedWorkers);
  std::vector<int> chosen;
  for (int i = 0; i < paired; ++i) {
    chosen.push_back(static_cast<int>(std::int64_t{i} * workers / paired));
  }
  return chosen;
}

/// Counts the non-zero elements, after the values of repeated rows are summed. NaN is not zero.
std::int64_t non_zeros(const TracePart& part, const TensorSpec& tensor) {
  std::vector<std::size_t> order(part.indices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(part.indices[a], a) < std::pair(part.indices[b], b);
  });
  const auto width = static_cast<std::size_t>(tensor.width);
  std::int64_t found = 0;
  for_dtype(tensor.dtype, [&]<typename T>(T) {
    using Traits = ValueTraits<T>;
    std::vector<typename Traits::Sum> sums(width);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::byte* row = part.values.data() + order[i] * width * sizeof(T);
      for (std::size_t column = 0; column < width; ++column) {
        T element;
        std::memcpy(&element, row + column * sizeof(T), sizeof(T));
        sums[column] += Traits::widen(element);
      }
      if (i + 1 < order.size() && part.indices[order[i + 1]] == part.indices[order[i]]) continue;
      found += std::count_if(sums.begin(), sums.end(),
                             [](auto sum) { return !Traits::is_zero(Traits::narrow(sum)); });
      std::fill(sums.begin(), sums.end(), typename Traits::Sum{});
    }
  });
  return found;
}

/// Counts the blocks of `block` elements that overlap a row of a set.
std::int64_t touched_blocks(std::span<const Index> rows, Index width, Index block) {
  std::int64_t touched = 0;
  Index next = 0;  // first block that no previous row overlaps
  for (const Index row : rows) {
    const Index end = ((row + 1) * width - 1) / block + 1;
    touched += std::max<Index>(end - std::max(next, row * width / block), 0);
    next = end;
  }
  return touched;
}

/// Returns the skewness: density of the densest of `parts` ranges / density of all rows. Row r lies
/// in range ⌊r · parts / rows⌋. Each range counts as rows / parts rows; the actual number differs
/// by less than one.
/// @param set  increasing, not empty
double skewness(std::span<const Index> set, Index rows, Index parts) {
  std::ptrdiff_t fullest = 0;
  auto begin = set.begin();
  for (Index part = 1; part <= parts && begin != set.end(); ++part) {
    // ⌈part · rows / parts⌉, computed without the product, which could overflow.
    const Index bound = part * (rows / parts) + ceil_div(part * (rows % parts), parts);
    const auto end = std::lower_bound(begin, set.end(), bound);
    fullest = std::max(fullest, end - begin);
    begin = end;
  }
  return static_cast<double>(fullest * parts) / static_cast<double>(set.size());
}

/// Accumulates the profile of one tensor, step by step.
class TensorProfiler {
 public:
  TensorProfiler(const TensorSpec& tensor, int workers, const ProfileOptions& options)
      : tensor_(tensor),
        workers_(workers),
        options_(options),
        question_{group_sizes(workers), paired_workers(workers)},
        united_in_groups_(question_.group_sizes.size()),
        skewness_(options.partitions.size()),
        blocks_(options.blocks.size()) {}

  /// Adds a step.
  /// @param sets       one for each worker, increasing
  /// @param non_zeros  number of non-zero elements of all workers' gradients
  void add(const IndexSets& sets, double non_zeros, Threads& threads) {
    const int parts = threads.count();
    const std::vector<IndexRange> ranges = even_work(sets, tensor_.rows, parts);
    std::vector<SharedRows> found(ranges.size());
    threads.run(parts, [&](int part) {
      const auto at = static_cast<std::size_t>(part);
      found[at] = shared_rows(sets, ranges[at], question_);
    });
    SharedRows shared = std::move(found.front());
    for (std::size_t part = 1; part < found.size(); ++part) shared.add(found[part]);
    const auto rows = static_cast<double>(tensor_.rows);
    Moments of_step;
    for (const std::span<const Index> set : sets) {
      of_step.add(static_cast<double>(set.size()) / rows);
      row_density_.add(static_cast<double>(set.size()) / rows);
    }
    row_density_of_step_.push_back(of_step.mean());
    non_zeros_ += non_zeros;
    add_overlaps(sets, shared.common);
    for (std::size_t i = 0; i < united_in_groups_.size(); ++i) {
      united_in_groups_[i] += static_cast<double>(shared.united_in_groups[i]);
    }
    add_skewness_and_blocks(sets, threads);
    touches_.add(shared.united);
    add_drift(shared.united);
  }

  TensorProfile result() {
    TensorProfile profile;
    profile.row_density = {row_density_.mean(), row_density_.min, row_density_.max};
    profile.density = non_zeros_ / row_density_.count / static_cast<double>(tensor_.rows) /
                      static_cast<double>(tensor_.width);
    profile.row_density_of_step = row_density_of_step_;
    profile.overlap = overlap_;
    profile.overlap.mean = overlaps_.mean();
    profile.overlap.stdev = overlaps_.stdev();
    const auto steps = static_cast<double>(row_density_of_step_.size());
    for (std::size_t i = 0; i < united_in_groups_.size(); ++i) {
      const int size = question_.group_sizes[i];
      const int groups_of_step = workers_ / size;
      const double groups = steps * groups_of_step;
      // This order of operations makes the result exactly 1 for one worker.
      const double united = united_in_groups_[i] * row_density_.count / groups;
      const auto touches = static_cast<double>(touches_.touches());
      profile.densification.emplace_back(size, touches > 0 ? united / touches : 1);
    }
    for (std::size_t i = 0; i < skewness_.size(); ++i) {
      profile.skewness.emplace_back(options_.partitions[i],
                                    skewness_[i].count > 0 ? skewness_[i].mean() : 1);
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      profile.blocks.emplace_back(options_.blocks[i], blocks_[i].mean());
    }
    const std::span<const CountedRow> counted = touches_.rows();
    profile.hot_rows = hottest(counted, options_.hot_rows);
    profile.touches = touches_.touches();
    profile.drift = drift_;
    const CountsOfCounts counts = counts_of_counts(counted);
    profile.zipf = fit_zipf(tensor_.rows, counts, static_cast<std::int64_t>(row_density_.count));
    profile.touch_histogram = histogram_of(counts, tensor_.rows - std::ssize(counted));
    return profile;
  }

 private:
  void add_overlaps(const IndexSets& sets, const std::vector<std::int64_t>& common) {
    const std::vector<int>& paired = question_.paired;
    const auto size_of = [&](std::size_t i) {
      return std::ssize(sets[static_cast<std::size_t>(paired[i])]);
    };
    for (std::size_t a = 0; a < paired.size(); ++a) {
      for (std::size_t b = a + 1; b < paired.size(); ++b) {
        const std::int64_t both = common[a * paired.size() + b];
        overlaps_.add(overlap_ratio(both, size_of(a), size_of(b)));
        // Integer arithmetic puts a ratio at the edge of a bin into the bin that begins there.
        const std::int64_t smaller = std::max<std::int64_t>(1, std::min(size_of(a), size_of(b)));
        const std::int64_t bin = both * OverlapDistribution::kBins / smaller;
        ++overlap_.histogram[static_cast<std::size_t>(
            std::min<std::int64_t>(bin, OverlapDistribution::kBins - 1))];
        ++overlap_.pairs;
      }
    }
  }

  void add_skewness_and_blocks(const IndexSets& sets, Threads& threads) {
    const std::size_t partitions = options_.partitions.size();
    const std::size_t measures = partitions + options_.blocks.size();
    std::vector<double> found(sets.size() * measures);
    threads.run(static_cast<int>(sets.size()), [&](int worker) {
      const std::span<const Index> set = sets[static_cast<std::size_t>(worker)];
      double* const to = &found[static_cast<std::size_t>(worker) * measures];
      for (std::size_t i = 0; i < partitions && !set.empty(); ++i) {
        to[i] = skewness(set, tensor_.rows, options_.partitions[i]);
      }
      for (std::size_t i = 0; i < options_.blocks.size(); ++i) {
        const RowSpace space{tensor_.dtype, tensor_.width, tensor_.rows, {}};
        const RowSpace blocks = block_space(space, options_.blocks[i]);
        to[partitions + i] = static_cast<double>(touched_blocks(set, tensor_.width, blocks.width)) /
                             static_cast<double>(blocks.rows);
      }
    });
    for (std::size_t worker = 0; worker < sets.size(); ++worker) {
      const double* const of_worker = &found[worker * measures];
      for (std::size_t i = 0; i < partitions; ++i) {
        if (!sets[worker].empty()) skewness_[i].add(of_worker[i]);
      }
      for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].add(of_worker[partitions + i]);
    }
  }

  void add_drift(std::span<const CountedRow> united) {
    if (drift_.empty()) {
      for (const CountedRow& each : united) first_.push_back(each.row);
    }
    std::int64_t common = 0;
    auto next = first_.begin();
    for (const CountedRow& each : united) {
      next = std::lower_bound(next, first_.end(), each.row);
      common += next != first_.end() && *next == each.row ? 1 : 0;
    }
    const bool nothing = first_.empty() && united.empty();
    drift_.push_back(nothing ? 0
                             : 1 - overlap_ratio(common, std::ssize(first_), std::ssize(united)));
  }

  static std::vector<std::pair<std::int64_t, std::int64_t>> histogram_of(
      const CountsOfCounts& counts, Index untouched) {
    std::vector<std::pair<std::int64_t, std::int64_t>> histogram{{0, untouched}};
    for (const auto& [times, rows] : counts) {
      while (histogram.size() < 2 || times >= 2 * histogram.back().first) {
        histogram.emplace_back(std::max<std::int64_t>(1, 2 * histogram.back().first), 0);
      }
      histogram.back().second += rows;
    }
    return histogram;
  }

  const TensorSpec& tensor_;
  int workers_;
  const ProfileOptions& options_;
  SharedRowsQuestion question_;
  Moments row_density_;  // over workers and steps
  std::vector<double> row_density_of_step_;
  double non_zeros_ = 0;
  Moments overlaps_;
  OverlapDistribution overlap_;
  std::vector<double> united_in_groups_;  // [group size]: sum over all groups and steps
  std::vector<Moments> skewness_;
  std::vector<Moments> blocks_;
  TouchCounts touches_;
  std::vector<Index> first_;  // the union of the first step
  std::vector<double> drift_;
};

}  // namespace

std::vector<TensorProfile> profile(const Trace& trace, const ProfileOptions& options) {
  const TraceHeader& header = trace.header();
  Threads threads(options.threads);
  std::vector<TensorProfiler> profilers;
  for (const TensorSpec& tensor : header.tensors) {
    profilers.emplace_back(tensor, header.workers, options);
  }
  const auto workers = static_cast<std::size_t>(header.workers);
  std::vector<std::vector<TracePart>> parts(workers);
  std::vector<std::vector<double>> elements(workers);  // [worker][tensor]: non-zero elements
  for (int step = 0; step < header.steps; ++step) {
    options.progress(step, header.steps);
    threads.run(header.workers, [&](int worker) {
      const auto at = static_cast<std::size_t>(worker);
      parts[at] = trace.has_values() ? trace.load(Rank{worker}, step)
                                     : trace.load_indices(Rank{worker}, step);
      elements[at].clear();
      for (std::size_t i = 0; i < parts[at].size(); ++i) {
        TracePart& part = parts[at][i];
        const TensorSpec& tensor = header.tensors[i];
        const bool recorded = trace.has_values();
        const std::int64_t found = recorded ? non_zeros(part, tensor) : 0;
        make_distinct(part.indices);
        // Generated values are never zero.
        elements[at].push_back(recorded ? static_cast<double>(found)
                                        : static_cast<double>(std::ssize(part.indices)) *
                                              static_cast<double>(tensor.width));
      }
    });
    for (std::size_t i = 0; i < profilers.size(); ++i) {
      IndexSets sets;
      double found = 0;
      for (std::size_t worker = 0; worker < workers; ++worker) {
        sets.emplace_back(parts[worker][i].indices);
        found += elements[worker][i];
      }
      profilers[i].add(sets, found, threads);
    }
  }
  options.progress(header.steps, header.steps);
  std::vector<TensorProfile> profiles;
  for (TensorProfiler& profiler : profilers) profiles.push_back(profiler.result());
  return profiles;
}

}  // namespace sparsesync
