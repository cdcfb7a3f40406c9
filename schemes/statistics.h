// What is known of a bucket's sparsity: the numbers that costs are expected from.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/views.h"
#include "schemes/bucket.h"

namespace sparsesync {

/// The rows that each worker touched in one row space: increasing, one set for each worker.
using IndexSets = std::vector<std::span<const Index>>;

/// Index sets that own their rows.
using OwnedIndexSets = std::vector<std::vector<Index>>;
/// Views of them.
IndexSets views_of(const OwnedIndexSets& sets);

/// The indices of an increasing set that lie in a range.
std::span<const Index> indices_in(std::span<const Index> set, IndexRange range);

/// The rows of all sets, increasing, repeats among them.
std::vector<Index> sorted_rows(const IndexSets& sets);

/// The union of increasing sets, increasing.
std::vector<Index> united_rows(const IndexSets& sets);

/// Sparsity of one row space, over the workers.
struct SpaceStatistics {
  double touched_mean = 0;  // k: rows that a worker touched, mean over workers
  double touched_max = 0;   // of the worker that touched most
  double united = 0;        // |U|: rows that some worker touched
  // The fullest of n even ranges over the mean one: of all workers' rows together, and of the
  // union. 1 where nobody looked.
  double push_skewness = 1;
  double pull_skewness = 1;
  // [i]: of the largest union among aligned groups of 2^i workers (0 to 2^i - 1, ...; the last one
  // may have fewer), while 2^i < n. Empty where nobody looked.
  std::vector<double> united_in_groups = {};
  // Rows that some worker must send at least where values alone cross: its own once, and those that
  // nobody else touched to n - 2 more. 0 where nobody looked.
  double sent_at_least = 0;
  // Of what some schemes make of the rows; empty where nobody looked.
  std::vector<SpaceStatistics> blocks = {};  // block_ps: one, the blocks in the place of rows
  std::vector<SpaceStatistics> nodes = {};   // two_level: of each range, nodes as workers: nodes.h
};

/// Adds a share of other statistics to some: of each number, and of each group. Where shares add up
/// to 1 the sum is a mean. What schemes make of the rows is left as it is.
void add_share(SpaceStatistics& sum, const SpaceStatistics& of, double share);

/// Rows that a group of `workers` of the `size` workers touched, as expected: between the groups
/// that are known, or else between one worker and all of them, a power of the group's size.
double united_by(const SpaceStatistics& statistics, int workers, int size);

/// One for each row space of the bucket.
using Statistics = std::vector<SpaceStatistics>;

/// The sparsity of index sets in [0, rows).
SpaceStatistics statistics_of(const IndexSets& sets, Index rows);

/// The same, and what schemes with these options make of the rows of a row space.
SpaceStatistics statistics_of(const IndexSets& sets, const RowSpace& space,
                              const SchemeOptions& options);

/// The mean of the largest of `count` numbers drawn from a standard normal distribution
/// (Blom, "Statistical estimates and transformed beta-variables", 1958). Two samples: 0.56;
/// 64: 2.4.
double expected_largest_normal(int count);

/// The expected share of statistics that one of `parts` servers has at most, over the mean:
/// binomial spread of `rows` rows over `parts`, those of a universe of `universe` being drawn
/// without replacement.
double expected_imbalance(double rows, double universe, int parts);

/// A row for each block of `block` elements; of fewer, where the row space has no more.
/// @param block  at least 1
RowSpace block_space(const RowSpace& space, Index block);

/// The blocks that rows lie in: increasing, one set for each set of rows.
/// @param sets  increasing rows of `space`
OwnedIndexSets block_sets(const IndexSets& sets, const RowSpace& space, Index block);

/// The sparsity of the blocks. Where nobody looked: as if rows lay anywhere, which says too much of
/// rows that lie together.
SpaceStatistics block_statistics(const RowSpace& space, Index block,
                                 const SpaceStatistics& statistics);

}  // namespace sparsesync
