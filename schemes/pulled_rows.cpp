#include "schemes/pulled_rows.h"

#include "kernels/error.h"
#include "kernels/rows.h"

namespace sparsesync {
namespace {

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace

PulledRows::PulledRows(const Context& context, int rounds, int size)
    : row_count_(index(rounds)),
      first_(index(rounds) * index(size)),
      order_(context),
      slots_(context),
      workspace_(context),
      indices_(context),
      values_(context) {
  for (int server = 0; server < size; ++server) shares_.emplace_back(context);
  for (int round = 0; round < rounds; ++round) rows_.emplace_back(context);
}

std::span<Index> PulledRows::share(int server, Index count) {
  return shares_[index(server)].reserve(count);
}

void PulledRows::name(const Context& context, Round round, Placement& placement,
                      std::span<const std::vector<ConstSection>> pulled, std::size_t space) {
  Index total = 0;
  for (const std::vector<ConstSection>& server : pulled) total += server[space].counts.indices;
  const std::span<Index> rows = rows_[index(round.index)].reserve(total);
  row_count_[index(round.index)] = total;
  const int slices = placement.grid().column_slices;
  std::size_t filled = 0;
  for (int group = 0; group < placement.grid().row_groups; ++group) {
    const std::size_t before = filled;
    first_[index(round.index) * shares_.size() + index(group)] = static_cast<Index>(before);
    for (int server = group * slices; server < (group + 1) * slices; ++server) {
      const auto count = static_cast<std::size_t>(pulled[index(server)][space].counts.indices);
      placement.name_rows(context, group, {shares_[index(server)].data(), count},
                          rows.subspan(filled, count));
      filled += count;
    }
    for (int server = group * slices; server < (group + 1) * slices; ++server) {
      if (pulled[index(server)][space].counts.rows != static_cast<Index>(filled - before)) {
        throw CorruptDataError("the shares of a group do not add up to its rows");
      }
    }
  }
}

SpaceResult PulledRows::sort(const Context& context, const Placement& placement) {
  const RowSpace& shape = placement.space();
  Index total = 0;
  for (const Index count : row_count_) total += count;
  const std::span<Index> indices = indices_.reserve(total);
  std::size_t filled = 0;
  for (std::size_t round = 0; round < rows_.size(); ++round) {
    const std::span<const Index> rows(rows_[round].data(),
                                      static_cast<std::size_t>(row_count_[round]));
    copy(context, std::as_bytes(rows), reinterpret_cast<std::byte*>(indices.data() + filled));
    filled += rows.size();
  }
  in_order_ = placement.keeps_order() && rows_.size() == 1;
  if (!in_order_) {
    const std::span<Index> order = order_.reserve(total);
    sort_with_order(context, indices, order, shape.rows, workspace_);
    invert(context, order, slots_.reserve(total));
  }
  result_ = {values_.reserve(total * shape.row_bytes()).data(), shape.dtype, total, shape.width};
  return {Gradient::Layout::row_sparse, indices, as_const(result_)};
}

void PulledRows::place(const Context& context, Round round, int server, const Placement& placement,
                       const ConstSection& section) {
  const int group = placement.group_of(server);
  Index first = first_[index(round.index) * shares_.size() + index(group)];
  for (int earlier = 0; earlier < round.index; ++earlier) first += row_count_[index(earlier)];
  const Index rows = section.counts.rows;
  if (in_order_) {
    copy(context, section.values, result_.data + first * result_.row_bytes());
    return;
  }
  const std::span<const Index> slots(slots_.data() + first, static_cast<std::size_t>(rows));
  scatter_rows(context, {section.values.data(), result_.dtype, rows, placement.slice_width()},
               slots, placement.first_column(server), result_);
}

}  // namespace sparsesync
