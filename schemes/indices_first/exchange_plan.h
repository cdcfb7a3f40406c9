// What follows from knowing all index sets: whose rows cross to whom, in which order. Worked out by
// every worker for itself, the same on all.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/partition/owners.h"
#include "kernels/rows/aggregate.h"
#include "schemes/index_sets.h"
#include "schemes/indices_first/owner_policy.h"
#include "sparsesync/rank.h"

namespace sparsesync {

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
