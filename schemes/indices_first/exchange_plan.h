// Derives an exchange plan from all workers' index sets: which rows each worker sends to which
// server, and in which order. Every worker computes it independently, with the same result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/partition/owners.h"
#include "kernels/rows/aggregate.h"
#include "schemes/push_pull/grid.h"
#include "schemes/statistics.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// Assigns the rows of one row space to owners, divided into a Grid.
class Ownership {
 public:
  virtual ~Ownership() = default;
  /// Returns the division into row groups and column slices.
  virtual Grid grid() const = 0;
  /// Chooses the row group of each row of the union. Does not synchronize the stream.
  /// @param context    the context of all arguments
  /// @param united     the union of all index sets, increasing
  /// @param touched    [worker]: positions of its rows in `united`
  /// @param groups     receives the row group of each row of `united`
  /// @param workspace  scratch memory
  /// @throws BudgetError if the workspace may not grow
  virtual void choose(const Context& context, std::span<const Index> united,
                      std::span<const std::span<const Index>> touched,
                      std::span<std::int32_t> groups, OwnersWorkspace& workspace) const = 0;
};

/// [row space] of the bucket.
using Ownerships = std::vector<std::unique_ptr<Ownership>>;

/// The exchange plan of one row space in one round, from the view of one worker. Keeps its memory
/// between steps.
class RowPlan {
 public:
  RowPlan(const Context& context, int size);

  /// Computes the plan. Synchronizes the stream.
  /// @param sets       [worker]; they stay unchanged while the plan is used
  /// @param range      contains all indices
  /// @param rank       this worker
  /// @param group      the row group that it serves
  /// @param ownership  assigns rows to groups
  /// @throws BudgetError
  void make(const IndexSets& sets, IndexRange range, Rank rank, int group,
            const Ownership& ownership);

  /// Returns all rows that any worker touched.
  std::span<const Index> united() const { return united_; }
  /// Returns this worker's rows of a group, as positions in its index set.
  std::span<const Index> pushed(int group) const {
    return of_group(push_order_, push_begin_, group);
  }
  /// Returns the rows of a group, as positions in united().
  std::span<const Index> pulled(int group) const {
    return of_group(pull_order_, pull_begin_, group);
  }
  /// Returns a worker's rows of the group that this worker serves.
  std::span<const Index> served(Rank worker) const { return served_[worker.index()]; }
  /// Returns all rows of the group that this worker serves.
  std::span<const Index> served_union() const { return served_union_; }

 private:
  static std::span<const Index> of_group(const Buffer<Index>& order, std::span<const Index> begin,
                                         int group) {
    const auto at = static_cast<std::size_t>(group);
    return {order.data() + begin[at], static_cast<std::size_t>(begin[at + 1] - begin[at])};
  }
  std::span<const std::int32_t> assign(const IndexSets& sets, const Ownership& ownership);

  Context context_;
  std::vector<Buffer<Index>> place_buffers_;     // [worker]
  std::vector<std::span<const Index>> touched_;  // [worker]
  std::vector<Buffer<Index>> served_buffers_;    // [worker]
  std::vector<std::span<const Index>> served_;   // [worker]
  Buffer<Index> united_buffer_;
  Buffer<Index> served_union_buffer_;
  std::span<const Index> united_;
  std::span<const Index> served_union_;
  Buffer<Index> all_;  // 0, 1, ...: positions of the rows of the union
  Buffer<std::int32_t> groups_;
  Buffer<Index> push_order_;
  Buffer<Index> pull_order_;
  std::vector<PlacesJob> sought_;
  std::vector<OwnedJob> jobs_;
  Buffer<Index> counts_;
  std::vector<Index> known_;  // copy of `counts_` on the host
  std::span<const Index> push_begin_;
  std::span<const Index> pull_begin_;
  AggregateWorkspace unite_workspace_;
  OwnersWorkspace owners_workspace_;
};

}  // namespace sparsesync
