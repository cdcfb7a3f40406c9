// The division of workers into nodes of consecutive ranks, and of rows into ranges. Each range
// belongs to one worker of every node. Used by two_level.
#pragma once

#include "kernels/base/views.h"
#include "schemes/statistics.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// Maps workers to nodes. The worker with index `place` on its node owns the `place`-th even range
/// of each row space's rows for its node.
class Nodes {
 public:
  /// @param workers   a multiple of `per_node`
  /// @param per_node  workers per node, at least 1
  Nodes(int workers, int per_node) : count_(workers / per_node), per_node_(per_node) {}

  int count() const { return count_; }
  int per_node() const { return per_node_; }
  /// Returns the node of a worker.
  int node_of(Rank worker) const { return worker.value / per_node_; }
  /// Returns the index of a worker on its node.
  int place_of(Rank worker) const { return worker.value % per_node_; }
  /// Returns the worker with this index on a node.
  Rank worker(int node, int place) const { return {node * per_node_ + place}; }

  /// Returns the range of rows that belongs to an index, for a row space of `rows` rows.
  IndexRange range(Index rows, int place) const { return EvenRanges(rows, per_node_).range(place); }

 private:
  int count_;
  int per_node_;
};

/// Returns the rows of a range that the workers of each node touched together, relative to the
/// start of the range: [node], each set increasing.
/// @param sets   [worker], each set increasing
/// @param nodes  the division of workers
/// @param range  the range of rows
OwnedIndexSets node_sets(const IndexSets& sets, const Nodes& nodes, IndexRange range);

/// Returns the statistics of node_sets() for the range of index `place`. If unknown, estimates them
/// for the fullest range, assuming that the union grows by the same factor whenever the number of
/// workers doubles.
/// @param statistics  of the whole row space
/// @param rows        rows of the whole row space
/// @param nodes       the division of workers
/// @param place       index of the range
SpaceStatistics range_statistics(const SpaceStatistics& statistics, Index rows, const Nodes& nodes,
                                 int place);

}  // namespace sparsesync
