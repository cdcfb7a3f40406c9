// What a trace's sparsity will be among other numbers of workers than it was recorded with.
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

/// One row space, or its blocks, as some steps of a trace touched it.
class SpaceOutlook {
 public:
  /// @param steps  of each step one set for each worker, increasing; kept
  SpaceOutlook(Index rows, std::vector<OwnedIndexSets> steps);

  /// What is expected among so many workers. Up to those of the trace: the mean over steps and
  /// aligned groups. Of more: every worker touches as many rows as those of the trace; the union
  /// grows as UnionGrowth has it, and so does that of the range that is pulled most. Of two_level's
  /// nodes nothing is told.
  SpaceStatistics statistics(int workers) const;
  /// Rows that so many workers touch together: statistics().united.
  double united(int workers) const;
  /// As it is told from the first eighth of the workers alone.
  double united_from_an_eighth(int workers) const { return growth_from_an_eighth_.united(workers); }
  double touched_mean() const { return touched_mean_; }
  int known_workers() const { return static_cast<int>(steps_.front().size()); }
  int steps() const { return static_cast<int>(steps_.size()); }

 private:
  SpaceStatistics seen(int workers) const;
  double united_in_aligned_groups(int workers) const;
  SpaceStatistics expected(int workers) const;
  /// Of all steps: what each worker touched in each.
  double samples() const {
    return static_cast<double>(steps_.front().size()) * static_cast<double>(steps_.size());
  }

  Index rows_;
  std::vector<OwnedIndexSets> steps_;
  std::vector<CountedRow> counted_;          // over all steps
  std::vector<double> united_of_doublings_;  // [i]: of aligned groups of 2^i
  UnionGrowth growth_;
  UnionGrowth growth_from_an_eighth_;
  double touched_mean_ = 0;
  double touched_stdev_ = 0;
};

/// So many touched rows a plan looks at: as many as two seconds are enough for.
inline constexpr std::int64_t kTouchesToPlanBy = 640'000;

/// A trace's tensors as one bucket.
class Outlook {
 public:
  /// Looks at so many steps as have `most_touches` touched rows of all workers together, if each
  /// has as many as the first; at one at least, 256 at most. They lie evenly among the trace's.
  /// Reads no value.
  /// @throws InputError if a file of the trace is not what its header says
  Outlook(const Trace& trace, const SchemeOptions& options, std::int64_t most_touches);

  const std::vector<RowSpace>& spaces() const { return spaces_; }
  /// One for each row space. Takes some time where the trace has as many workers: call it once.
  Statistics statistics(int workers) const;
  /// γ: values of the union over those of a worker, all row spaces together; 1 where none are
  /// touched. Up to the trace's workers of aligned groups, as statistics() has them; beyond them as
  /// UnionGrowth does.
  double densification(int workers) const;
  /// The same as UnionGrowth has it that knows an eighth of the trace's workers alone: what is told
  /// of eight times as many as there are, held against those that there are.
  double densification_from_an_eighth(int workers) const;
  int known_workers() const { return outlooks_.front().known_workers(); }
  /// Those that densification_from_an_eighth() knows.
  int eighth_of_workers() const;
  int steps() const { return outlooks_.front().steps(); }
  /// Rows that a worker touches in a row space, mean.
  double touched_mean(std::size_t space) const { return outlooks_[space].touched_mean(); }

 private:
  double densification_by(double (SpaceOutlook::*united)(int) const, int workers) const;

  std::vector<RowSpace> spaces_;
  std::vector<SpaceOutlook> outlooks_;  // [row space]
  // [row space] of its blocks, where somebody asks and rows have few
  std::vector<std::optional<SpaceOutlook>> block_outlooks_;
};

}  // namespace sparsesync
