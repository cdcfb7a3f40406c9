#include "schemes/even_placement.h"

#include "kernels/partition.h"
#include "kernels/rows.h"
#include "schemes/push_pull.h"

namespace sparsesync {

EvenPlacement::EvenPlacement(const RowSpace& space, int /*number*/,
                             const SchemeEnvironment& environment)
    : Placement(space, {environment.size, 1}, {IndexCode::coo, IndexCode::coo}),
      ranges_(space.rows, environment.size) {}

Placement::Place EvenPlacement::place(Index row) const {
  const Index range = ranges_.part_of(row);
  return {static_cast<int>(range), row - ranges_.range(range).begin};
}

void EvenPlacement::divide(const Context& context, std::span<const Index> rows,
                           std::span<Index> indices, std::span<Index> sources,
                           std::span<Index> group_begin) {
  divide_evenly(context, ranges_, rows, indices, group_begin);
  number(context, sources);
}

void EvenPlacement::name_rows(const Context& context, int group, std::span<const Index> pulled,
                              std::span<Index> rows) {
  shift(context, pulled, ranges_.range(group).begin, rows);
}

SpaceChoice EvenPlacement::choice() const {
  return {std::string(name_of(IndexCode::coo)), grid().row_groups, grid().column_slices};
}

Cost even_placement_cost(const RowSpace& space, int size, const SpaceStatistics& statistics) {
  const double others = (size - 1.0) / size;
  const auto row =
      static_cast<double>(space.row_bytes() + coo_index_bytes(ceil_div<Index>(space.rows, size)));
  const double pushed = others * statistics.touched_mean * row;
  const double pulled = others * statistics.united * row;
  return {{0, 0, pushed, pushed * statistics.push_skewness},
          {0, 0, pulled * statistics.pull_skewness, pulled}};
}

double even_placement_workspace_bytes(const RowSpace& space, int size,
                                      const SpaceStatistics& statistics) {
  return push_pull_workspace_bytes(space, size, statistics, {size, 1},
                                   ceil_div<Index>(space.rows, size));
}

}  // namespace sparsesync
