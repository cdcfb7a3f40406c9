#include "schemes/push_pull/partitioned_rows.h"

#include <array>

#include "kernels/base/host_copy.h"
#include "kernels/indices/locate.h"
#include "schemes/bucket_input.h"

namespace sparsesync {

DividedRows::DividedRows(const Context& context, const Placements& placements, int size)
    : context_(context), placements_(placements), located_(context) {
  for (std::size_t i = 0; i < placements.size(); ++i) {
    spaces_.emplace_back(context).group_begin.reserve_exactly(size + 1);
  }
}

void DividedRows::find(Round round, BucketInput& input) {
  if (round.index == 0) {
    if (find_unchecked(round, input)) return;
    for (std::size_t i = 0; i < spaces_.size(); ++i) divide(i, input.coalesced(i).indices);
  }
  const std::span<const Index> located = locate(round);
  fetched_.resize(located.size());
  fetch_numbers(context_, located, fetched_);
  take_bounds(fetched_);
}

void DividedRows::divide(std::size_t space, std::span<const Index> rows) {
  OfSpace& own = spaces_[space];
  own.rows = std::ssize(rows);
  placements_[space]->divide(context_, rows, own.divided.reserve(own.rows),
                             own.sources.reserve(own.rows),
                             own.group_begin.first(placements_[space]->grid().row_groups + 1));
}

std::span<const Index> DividedRows::locate(Round round) {
  Index numbers = 0;
  for (const auto& placement : placements_) numbers += 2 * placement->grid().row_groups;
  const std::span<Index> all = located_.reserve(numbers);
  Index begin = 0;
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const OfSpace& own = spaces_[i];
    const Index groups = placements_[i]->grid().row_groups;
    locate_in_groups(context_, own.divided.first(own.rows), own.group_begin.first(groups + 1),
                     placements_[i]->range(round), part_of(all, {begin, begin + 2 * groups}));
    begin += 2 * groups;
  }
  return all;
}

void DividedRows::take_bounds(std::span<const Index> fetched) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const auto size = 2 * static_cast<std::size_t>(placements_[i]->grid().row_groups);
    spaces_[i].bounds.assign(fetched.begin(), fetched.begin() + static_cast<std::ptrdiff_t>(size));
    fetched = fetched.subspan(size);
  }
}

/// Partitions the given rows while their index check is pending, and fetches the results of both to
/// the host at once.
/// @return whether the check succeeded
bool DividedRows::find_unchecked(Round round, BucketInput& input) {
  if (input.unchecked().empty()) return false;
  for (std::size_t i = 0; i < spaces_.size(); ++i) divide(i, input.unchecked()[i]);
  const std::span<const Index> located = locate(round);
  const std::span<const Index> outcome = input.outcome();
  fetched_.resize(located.size() + outcome.size());
  fetch_pieces(context_, std::array{std::as_bytes(located), std::as_bytes(outcome)},
               std::as_writable_bytes(std::span(fetched_)).data());
  if (!input.verify(std::span(fetched_).subspan(located.size()))) return false;
  take_bounds(fetched_);
  return true;
}

DividedRows::Selection DividedRows::selection(std::size_t space, int group) const {
  const OfSpace& own = spaces_[space];
  const auto at = 2 * static_cast<std::size_t>(group);
  const Index begin = own.bounds[at];
  const auto count = static_cast<std::size_t>(own.bounds[at + 1] - begin);
  return {{own.divided.data() + begin, count}, {own.sources.data() + begin, count}};
}

}  // namespace sparsesync
