#include "schemes/values_alone/row_plan.h"

#include <algorithm>

#include "kernels/host_copy.h"
#include "kernels/owners.h"
#include "kernels/rows.h"

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
  counts_.reserve_exactly(size + 1);
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

  const auto begins = static_cast<std::size_t>(ownership.grid().row_groups) + 1;
  const std::span<Index> begin(counts_.data(), begins);
  const auto order = [&](std::span<const Index> places, Buffer<Index>& ordered,
                         std::vector<Index>& begin_on_host) {
    order_by_owner(context_, groups, places, ordered.reserve(std::ssize(places)), begin);
    begin_on_host.resize(begins);
    fetch_numbers(context_, begin, begin_on_host);
  };
  order(touched_[rank.index()], push_order_, push_begin_);
  const std::span<Index> all = all_.reserve(std::ssize(united_));
  number(context_, all);
  order(all, pull_order_, pull_begin_);

  const auto mine = static_cast<std::int32_t>(group);
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    const std::span<Index> rows = served_buffers_[worker].reserve(std::ssize(sets[worker]));
    const Count served(counts_.data() + worker);
    rows_of_owner(context_, groups, sets[worker], touched_[worker], mine, rows, served);
  }
  const std::span<Index> of_group = served_union_buffer_.reserve(std::ssize(all));
  rows_of_owner(context_, groups, united_, all, mine, of_group,
                Count(counts_.data() + sets.size()));
  served_counts_.resize(sets.size() + 1);
  fetch_numbers(context_, {counts_.data(), served_counts_.size()}, served_counts_);
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    served_[worker] = served_buffers_[worker].first(served_counts_[worker]);
  }
  served_union_ = served_union_buffer_.first(served_counts_.back());
}

std::span<const std::int32_t> RowPlan::assign(const IndexSets& sets, const Ownership& ownership) {
  for (std::size_t worker = 0; worker < sets.size(); ++worker) {
    const std::span<Index> places = place_buffers_[worker].reserve(std::ssize(sets[worker]));
    find_places(context_, united_, sets[worker], places, Count(counts_.data()));
    touched_[worker] = places;
  }
  const std::span<std::int32_t> groups = groups_.reserve(std::ssize(united_));
  ownership.choose(context_, united_, touched_, groups, owners_workspace_);
  return groups;
}

}  // namespace sparsesync
