// Workers on nodes: runs of consecutive ranks; and the ranges of rows that the workers of a node
// divide among them. What two_level crosses in two levels.
#pragma once

#include "kernels/base/views.h"
#include "schemes/statistics.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// Worker `place` of each node holds the `place`-th even range of a row space's rows for its node.
class Nodes {
 public:
  /// @param workers  a multiple of `per_node`, which is at least 1
  Nodes(int workers, int per_node) : count_(workers / per_node), per_node_(per_node) {}

  int count() const { return count_; }
  int per_node() const { return per_node_; }
  /// The node that a worker is on.
  int node_of(Rank worker) const { return worker.value / per_node_; }
  /// Its place there.
  int place_of(Rank worker) const { return worker.value % per_node_; }
  /// The worker at a place of a node.
  Rank worker(int node, int place) const { return {node * per_node_ + place}; }

  /// The rows that it holds of a row space of so many.
  IndexRange range(Index rows, int place) const { return EvenRanges(rows, per_node_).range(place); }

 private:
  int count_;
  int per_node_;
};

/// The rows of a range that the workers of each node touched together, counted from where it
/// begins: increasing, one set for each node.
/// @param sets  increasing, one for each worker
OwnedIndexSets node_sets(const IndexSets& sets, const Nodes& nodes, IndexRange range);

/// The sparsity of that where the range is the `place`-th. Where nobody looked: what lies between
/// one worker and all of them, as if the union grew by the same factor with each doubling of the
/// workers, for the fullest range.
/// @param rows  of the whole row space
SpaceStatistics range_statistics(const SpaceStatistics& statistics, Index rows, const Nodes& nodes,
                                 int place);

}  // namespace sparsesync
