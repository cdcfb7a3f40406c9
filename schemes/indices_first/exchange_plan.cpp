#include "schemes/indices_first/exchange_plan.h"

#include <algorithm>

#include "kernels/base/host_copy.h"
#include "kernels/partition/owners.h"
#include "kernels/rows/rows.h"

namespace sparsesync {

RowPlan::RowPlan(const Context& context, int size)
    : context_(context),
      place_buffers_(buffers<Index>(context, static_cast<std::size_t>(size))),
      touched_(place_buffers_.size()),
      served_buffers_(buffers<Index>(context, place_buffers_.size())),
      served_(place_buffers_.size()),
      united_buffer_(context),
      served_union_buffer_(context),
      all_(context),
      groups_(context),
      push_order_(context),
      pull_order_(context),
      counts_(context),
      unite_workspace_(context),
      owners_workspace_(context) {
  counts_.reserve_exactly(3 * Index{size + 1});
}

void RowPlan::make(const IndexSets& sets, IndexRange range, Rank rank, int group,
                   const Ownership& ownership) {
  Index total = 0;
  for (const std::span<const Index> set : sets) total += std::ssize(set);
  const std::span<Index> united = united_buffer_.reserve(std::min(total, range.size()));
  const Count count(counts_.data());
  unite(context_, range, sets, united, count, unite_workspace_);
  united_ = united_buffer_.first(resolve(context_, count));
  const std::span<const std::int32_t> groups = assign(sets, ownership);

  // Numbers that the host needs: the start of each group in both orders, and how many rows of each
  // worker and of the union this worker serves.
  const Index begins = ownership.grid().row_groups + 1;
  const auto served = static_cast<Index>(sets.size()) + 1;
  const std::span<Index> counts = counts_.first(2 * begins + served);
  const std::span<const Index> own = touched_[rank.index()];
  order_by_owner(context_, groups, own, push_order_.reserve(std::ssize(own)),
                 part_of(counts, {0, begins}));
  const std::span<Index> all = all_.reserve(std::ssize(united_));
  number(context_, all);
  order_by_owner(context_, groups, all, pull_order_.reserve(std::ssize(all)),
                 part_of(counts, {begins, 2 * begins}));
  jobs_.clear();
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    jobs_.push_back({sets[worker], touched_[worker],
                     served_buffers_[worker].reserve(std::ssize(sets[worker]))});
  }
  jobs_.push_back({united_, all, served_union_buffer_.reserve(std::ssize(all))});
  rows_of_owner_all(context_, groups, jobs_, static_cast<std::int32_t>(group),
                    counts.last(static_cast<std::size_t>(served)));
  known_.resize(counts.size());
  fetch_numbers(context_, counts, known_);
  const std::span<const Index> known(known_);
  push_begin_ = part_of(known, {0, begins});
  pull_begin_ = part_of(known, {begins, 2 * begins});
  const std::span<const Index> served_counts = known.last(static_cast<std::size_t>(served));
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    served_[worker] = served_buffers_[worker].first(served_counts[worker]);
  }
  served_union_ = served_union_buffer_.first(served_counts.back());
}

std::span<const std::int32_t> RowPlan::assign(const IndexSets& sets, const Ownership& ownership) {
  sought_.clear();
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    const std::span<Index> places = place_buffers_[worker].reserve(std::ssize(sets[worker]));
    sought_.push_back({sets[worker], places});
    touched_[worker] = places;
  }
  // All rows are found, because the union contains them.
  find_places_all(context_, united_, sought_, counts_.first(std::ssize(sets)));
  const std::span<std::int32_t> groups = groups_.reserve(std::ssize(united_));
  ownership.choose(context_, united_, touched_, groups, owners_workspace_);
  return groups;
}

}  // namespace sparsesync
