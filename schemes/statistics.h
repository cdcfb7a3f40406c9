// Statistics of a bucket's sparsity, the input of cost models.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/views.h"
#include "schemes/bucket.h"

namespace sparsesync {

/// The rows that each worker touched in one row space: [worker], each set increasing.
using IndexSets = std::vector<std::span<const Index>>;

/// Index sets that own their memory.
using OwnedIndexSets = std::vector<std::vector<Index>>;
/// Returns views of index sets.
IndexSets views_of(const OwnedIndexSets& sets);

/// Returns the indices of an increasing set within a range.
std::span<const Index> indices_in(std::span<const Index> set, IndexRange range);

/// Returns the rows of all sets, increasing, with repeats.
std::vector<Index> sorted_rows(const IndexSets& sets);

/// Returns the union of increasing sets, increasing.
std::vector<Index> united_rows(const IndexSets& sets);

/// Sparsity of one row space over all workers.
struct SpaceStatistics {
  double touched_mean = 0;  // k: rows touched by a worker, mean over workers
  double touched_max = 0;   // rows touched by the worker that touched most
  double united = 0;        // |U|: rows touched by any worker
  // Rows of the fullest of n even ranges, relative to the mean range. Counts the rows of all
  // workers with repeats (push), or of the union (pull). 1 if unknown.
  double push_skewness = 1;
  double pull_skewness = 1;
  // [i]: size of the largest union among groups of 2^i workers, while 2^i < n. The groups are ranks
  // 0 to 2^i - 1 and so on. The last group may be smaller. Empty if unknown.
  std::vector<double> united_in_groups = {};
  // Smallest number of rows that the busiest worker must send if only values are sent: its rows
  // once, plus n - 2 further copies of rows that no other worker touched. 0 if unknown.
  double sent_at_least = 0;
  // Statistics of derived row spaces. Empty if unknown.
  std::vector<SpaceStatistics> blocks = {};  // block_ps: one entry, with blocks instead of rows
  // two_level: [range], with nodes instead of workers (nodes.h)
  std::vector<SpaceStatistics> nodes = {};
};

/// Adds `share` times other statistics to `sum`: each number, and each group. The result is a
/// weighted mean if all shares add up to 1. Leaves `blocks` and `nodes` unchanged.
void add_share(SpaceStatistics& sum, const SpaceStatistics& of, double share);

/// Returns the expected number of rows that a group of `workers` of the `size` workers touched.
/// Interpolates by a power law between known groups, or else between one worker and all workers.
double united_by(const SpaceStatistics& statistics, int workers, int size);

/// [row space] of the bucket.
using Statistics = std::vector<SpaceStatistics>;

/// Computes the statistics of index sets in [0, rows).
SpaceStatistics statistics_of(const IndexSets& sets, Index rows);

/// Computes the same, including the derived row spaces of schemes with these options.
SpaceStatistics statistics_of(const IndexSets& sets, const RowSpace& space,
                              const SchemeOptions& options);

/// Returns the expected maximum of `count` standard normal variables (Blom, "Statistical estimates
/// and transformed beta-variables", 1958): 0.56 for 2 variables, 2.4 for 64.
double expected_largest_normal(int count);

/// Returns the expected maximum share of a server, relative to the mean: `rows` rows, drawn without
/// replacement from `universe` rows, are distributed over `parts` servers binomially.
double expected_imbalance(double rows, double universe, int parts);

/// Returns the row space of blocks of `block` elements. A row space with fewer elements becomes one
/// smaller block.
/// @param space  the row space
/// @param block  at least 1
RowSpace block_space(const RowSpace& space, Index block);

/// Returns the blocks that contain touched rows: increasing, one set for each set of rows.
/// @param sets   increasing rows of `space`
/// @param space  the row space
/// @param block  elements per block
OwnedIndexSets block_sets(const IndexSets& sets, const RowSpace& space, Index block);

/// Returns the statistics of blocks. If unknown, estimates them from the rows' statistics as if
/// rows were distributed evenly. The estimate is too high for clustered rows.
SpaceStatistics block_statistics(const RowSpace& space, Index block,
                                 const SpaceStatistics& statistics);

}  // namespace sparsesync
