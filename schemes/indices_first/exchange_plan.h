// What follows from knowing all index sets: whose rows cross to whom, in which order. Worked out by
// every worker for itself, the same on all.
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

/// The owners of one row space, divided as Grid says.
class Ownership {
 public:
  virtual ~Ownership() = default;
  virtual Grid grid() const = 0;
  /// The row group of each row of the union. Does not synchronize the stream.
  /// @param touched  of each worker the places in `united` of its rows
  /// @throws BudgetError if the workspace may not grow
  virtual void choose(const Context& context, std::span<const Index> united,
                      std::span<const std::span<const Index>> touched,
                      std::span<std::int32_t> groups, OwnersWorkspace& workspace) const = 0;
};

/// One for each row space of the bucket.
using Ownerships = std::vector<std::unique_ptr<Ownership>>;

/// The plan of one row space in one round, as one worker sees it; keeps its memory from one step to
/// the next.
class RowPlan {
 public:
  RowPlan(const Context& context, int size);

  /// Synchronizes the stream.
  /// @param sets   of each worker; the plan is a view of them
  /// @param range  all indices lie in it
  /// @param rank   whose plan it is
  /// @param group  the row group that it serves
  /// @throws BudgetError
  void make(const IndexSets& sets, IndexRange range, Rank rank, int group,
            const Ownership& ownership);

  /// All rows that somebody touched.
  std::span<const Index> united() const { return united_; }
  /// This worker's rows of a group, as places in its own set.
  std::span<const Index> pushed(int group) const {
    return of_group(push_order_, push_begin_, group);
  }
  /// The rows of a group, as places in united().
  std::span<const Index> pulled(int group) const {
    return of_group(pull_order_, pull_begin_, group);
  }
  /// A worker's rows of the group that this worker serves.
  std::span<const Index> served(Rank worker) const { return served_[worker.index()]; }
  /// The rows of that group.
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
  Buffer<Index> all_;  // the numbers of the rows of the union
  Buffer<std::int32_t> groups_;
  Buffer<Index> push_order_;
  Buffer<Index> pull_order_;
  std::vector<PlacesJob> sought_;
  std::vector<OwnedJob> jobs_;
  Buffer<Index> counts_;
  std::vector<Index> known_;  // of them, on the host
  std::span<const Index> push_begin_;
  std::span<const Index> pull_begin_;
  AggregateWorkspace unite_workspace_;
  OwnersWorkspace owners_workspace_;
};

}  // namespace sparsesync
