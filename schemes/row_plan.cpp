#include "schemes/row_plan.h"

#include <algorithm>

#include "kernels/locate.h"
#include "kernels/rows.h"

namespace sparsesync {

RowPlan::RowPlan(const Context& context, int size)
    : context_(context),
      touched_(static_cast<std::size_t>(size)),
      served_(static_cast<std::size_t>(size)),
      united_buffer_(context),
      served_union_buffer_(context),
      all_(context),
      groups_(context),
      push_order_(context),
      pull_order_(context),
      counts_(context),
      unite_workspace_(context) {
  for (int worker = 0; worker < size; ++worker) {
    place_buffers_.emplace_back(context);
    served_buffers_.emplace_back(context);
  }
  counts_.reserve_exactly(size + 1);
}

void RowPlan::make(const IndexSets& sets, IndexRange range, Rank rank, int group,
                   Ownership& ownership) {
  Index total = 0;
  for (const std::span<const Index> set : sets) total += static_cast<Index>(set.size());
  const std::span<Index> united = united_buffer_.reserve(std::min(total, range.size()));
  const Count count(counts_.data());
  unite(context_, range, sets, united, count, unite_workspace_);
  united_ = united.first(static_cast<std::size_t>(resolve(context_, count)));
  const std::span<const std::int32_t> groups = assign(sets, ownership);

  const auto begins = static_cast<std::size_t>(ownership.grid().row_groups) + 1;
  const std::span<Index> begin(counts_.data(), begins);
  const auto order = [&](std::span<const Index> places, Buffer<Index>& ordered,
                         std::vector<Index>& begin_on_host) {
    order_by_owner(context_, groups, places, ordered.reserve(static_cast<Index>(places.size())),
                   begin);
    begin_on_host.resize(begins);
    fetch(context_, std::as_bytes(begin), reinterpret_cast<std::byte*>(begin_on_host.data()));
  };
  order(touched_[static_cast<std::size_t>(rank.value)], push_order_, push_begin_);
  const std::span<Index> all = all_.reserve(static_cast<Index>(united_.size()));
  number(context_, all);
  order(all, pull_order_, pull_begin_);

  const auto mine = static_cast<std::int32_t>(group);
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    const std::span<Index> rows =
        served_buffers_[worker].reserve(static_cast<Index>(sets[worker].size()));
    const Count served(counts_.data() + worker);
    rows_of_owner(context_, groups, sets[worker], touched_[worker], mine, rows, served);
  }
  const std::span<Index> of_group = served_union_buffer_.reserve(static_cast<Index>(all.size()));
  rows_of_owner(context_, groups, united_, all, mine, of_group,
                Count(counts_.data() + sets.size()));
  served_counts_.resize(sets.size() + 1);
  fetch(context_, std::as_bytes(std::span(counts_.data(), served_counts_.size())),
        reinterpret_cast<std::byte*>(served_counts_.data()));
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    served_[worker] = {served_buffers_[worker].data(),
                       static_cast<std::size_t>(served_counts_[worker])};
  }
  served_union_ = of_group.first(static_cast<std::size_t>(served_counts_.back()));
}

std::span<const std::int32_t> RowPlan::assign(const IndexSets& sets, Ownership& ownership) {
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    const std::span<Index> places =
        place_buffers_[worker].reserve(static_cast<Index>(sets[worker].size()));
    find_places(context_, united_, sets[worker], places, Count(counts_.data()));
    touched_[worker] = places;
  }
  const std::span<std::int32_t> groups = groups_.reserve(static_cast<Index>(united_.size()));
  ownership.choose(context_, united_, touched_, groups);
  return groups;
}

}  // namespace sparsesync
