// Extrapolation of a trace's sparsity to other numbers of workers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/profile/touch_histogram.h"
#include "analysis/profile/union_growth.h"
#include "analysis/trace/trace.h"
#include "schemes/bucket.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// The sparsity of one row space, or of its blocks, extrapolated from some steps of a trace.
class SpaceOutlook {
 public:
  /// @param steps  for each step one set per worker, increasing; stored
  SpaceOutlook(Index rows, std::vector<OwnedIndexSets> steps);

  /// Returns the statistics that are expected for a number of workers.
  ///
  /// Up to the trace's number of workers, they are the mean over steps and aligned groups. For more
  /// workers, each worker touches as many rows as in the trace. The union grows according to
  /// UnionGrowth, and so does the union of the range that is pulled most. The statistics have no
  /// data about two_level's nodes.
  SpaceStatistics statistics(int workers) const;
  /// Returns the number of rows that this many workers touch together: statistics().united.
  double united(int workers) const;
  /// Returns the same, extrapolated from the first eighth of the workers.
  double united_from_an_eighth(int workers) const { return growth_from_an_eighth_.united(workers); }
  double touched_mean() const { return touched_mean_; }
  int known_workers() const { return static_cast<int>(steps_.front().size()); }
  int steps() const { return static_cast<int>(steps_.size()); }

 private:
  SpaceStatistics seen(int workers) const;
  double united_in_aligned_groups(int workers) const;
  SpaceStatistics expected(int workers) const;
  /// Returns the number of samples: workers times steps.
  double samples() const {
    return static_cast<double>(steps_.front().size()) * static_cast<double>(steps_.size());
  }

  Index rows_;
  std::vector<OwnedIndexSets> steps_;
  std::vector<CountedRow> counted_;          // touches of each row over all steps
  std::vector<double> united_of_doublings_;  // [i]: mean union of aligned groups of 2^i workers
  UnionGrowth growth_;
  UnionGrowth growth_from_an_eighth_;
  double touched_mean_ = 0;
  double touched_stdev_ = 0;
};

/// Number of touched rows that a plan reads: about two seconds of work.
inline constexpr std::int64_t kTouchesToPlanBy = 640'000;

/// The extrapolated sparsity of a trace's tensors, as one bucket.
class Outlook {
 public:
  /// Reads a sample of the trace's steps, evenly spaced, and no values. The sample has 1 to 256
  /// steps: as many as contain `most_touches` touched rows of all workers together, if every step
  /// has as many as the first.
  /// @throws InputError if a file of the trace is not what its header says
  Outlook(const Trace& trace, const SchemeOptions& options, std::int64_t most_touches);

  const std::vector<RowSpace>& spaces() const { return spaces_; }
  /// Returns the statistics of each row space. Slow up to the trace's number of workers: call it
  /// once.
  Statistics statistics(int workers) const;
  /// Returns the densification γ: values in the union, divided by the values of one worker, over
  /// all row spaces. 1 if no row is touched. Measured with aligned groups up to the trace's number
  /// of workers, and extrapolated by UnionGrowth beyond it.
  double densification(int workers) const;
  /// Returns the densification extrapolated from the first eighth of the trace's workers. Comparing
  /// it with the measured one shows how accurate an extrapolation to eight times the workers is.
  double densification_from_an_eighth(int workers) const;
  int known_workers() const { return outlooks_.front().known_workers(); }
  /// Returns the number of workers that densification_from_an_eighth() uses.
  int eighth_of_workers() const;
  int steps() const { return outlooks_.front().steps(); }
  /// Returns the mean number of rows that a worker touches in a row space.
  double touched_mean(std::size_t space) const { return outlooks_[space].touched_mean(); }

 private:
  double densification_by(double (SpaceOutlook::*united)(int) const, int workers) const;

  std::vector<RowSpace> spaces_;
  std::vector<SpaceOutlook> outlooks_;  // [row space]
  // [row space]: sparsity of its blocks, if a block size is given and rows have few blocks
  std::vector<std::optional<SpaceOutlook>> block_outlooks_;
};

}  // namespace sparsesync
