#include "schemes/push_pull/gathered_rows.h"

#include "kernels/base/error.h"

namespace sparsesync {

PulledRows::PulledRows(const Context& context, int rounds, int size)
    : shares_(buffers<Index>(context, static_cast<std::size_t>(size))),
      rows_(buffers<Index>(context, static_cast<std::size_t>(rounds))),
      row_count_(rows_.size()),
      first_(rows_.size(), std::vector<Index>(shares_.size())),
      order_(context),
      slots_(context),
      workspace_(context),
      indices_(context),
      values_(context) {}

std::span<Index> PulledRows::share(Rank server, Index count) {
  return shares_[server.index()].reserve(count);
}

void PulledRows::name(const Context& context, Round round, Placement& placement,
                      std::span<const std::vector<ConstSection>> pulled, std::size_t space) {
  Index total = 0;
  for (const std::vector<ConstSection>& server : pulled) total += server[space].counts.indices;
  const std::span<Index> rows = rows_[round.position()].reserve(total);
  row_count_[round.position()] = total;
  const auto slices = static_cast<std::size_t>(placement.grid().column_slices);
  naming_.clear();
  std::size_t filled = 0;
  for (int group = 0; group < placement.grid().row_groups; ++group) {
    const auto first_server = static_cast<std::size_t>(group) * slices;
    const std::size_t before = filled;
    first_[round.position()][static_cast<std::size_t>(group)] = static_cast<Index>(before);
    for (std::size_t server = first_server; server < first_server + slices; ++server) {
      const auto count = static_cast<std::size_t>(pulled[server][space].counts.indices);
      naming_.push_back({group, {shares_[server].data(), count}, rows.subspan(filled, count)});
      filled += count;
    }
    for (std::size_t server = first_server; server < first_server + slices; ++server) {
      if (pulled[server][space].counts.rows != static_cast<Index>(filled - before)) {
        throw CorruptDataError("the shares of a group do not add up to its rows");
      }
    }
  }
  placement.name_rows(context, naming_);
}

SpaceResult PulledRows::sort(const Context& context, const Placement& placement) {
  const RowSpace& shape = placement.space();
  Index total = 0;
  for (const Index count : row_count_) total += count;
  const std::span<Index> indices = indices_.reserve(total);
  std::size_t filled = 0;
  for (std::size_t round = 0; round < rows_.size(); ++round) {
    const std::span<const Index> rows = rows_[round].first(row_count_[round]);
    copy(context, std::as_bytes(rows), std::as_writable_bytes(indices.subspan(filled)).data());
    filled += rows.size();
  }
  in_order_ = pulled_order(placement.keeps_order(), static_cast<int>(rows_.size())) ==
              PulledOrder::increasing;
  if (!in_order_) {
    const std::span<Index> order = order_.reserve(total);
    sort_with_order(context, indices, order, shape.rows, workspace_);
    invert(context, order, slots_.reserve(total));
  }
  result_ = {values_.reserve(total * shape.row_bytes()).data(), shape.dtype, total, shape.width};
  return {Gradient::Layout::row_sparse, indices, as_const(result_)};
}

void PulledRows::scatter(const Context& context, Round round, const Placement& placement,
                         std::span<const Placing> sent) {
  Index before = 0;
  for (std::size_t earlier = 0; earlier < round.position(); ++earlier) {
    before += row_count_[earlier];
  }
  jobs_.clear();
  for (const Placing& each : sent) {
    const auto group = static_cast<std::size_t>(placement.group_of(each.server));
    const Index first = before + first_[round.position()][group];
    const Index rows = each.section->counts.rows;
    if (in_order_) {
      copy(context, each.section->values, result_.data + first * result_.row_bytes());
      continue;
    }
    jobs_.push_back({{each.section->values.data(), result_.dtype, rows, placement.slice_width()},
                     {slots_.data() + first, static_cast<std::size_t>(rows)},
                     placement.first_column(each.server)});
  }
  scatter_rows_all(context, jobs_, result_);
}

}  // namespace sparsesync
