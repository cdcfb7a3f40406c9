// balanced: our own scheme. Rows are cut into groups by a keyed bijection and columns into slices,
// so that every worker owns an equal part of every step without any exchange beforehand (design:
// "Our own schemes"). A group's indices are the positions that the bijection gives its rows.
#include "kernels/aggregate.h"
#include "kernels/bijection.h"
#include "kernels/partition.h"
#include "schemes/known_rows.h"
#include "schemes/push_pull.h"

namespace sparsesync {
namespace {

/// What is thought of a row space before a step was seen: a row in a hundred, half of them shared.
SpaceStatistics first_guess(const RowSpace& space, int size) {
  const double touched = std::max(1.0, static_cast<double>(space.rows) / 100);
  return {touched, touched, std::min(static_cast<double>(space.rows), touched * (1 + size) / 2)};
}

std::uint64_t key_of(const SchemeEnvironment& environment, int number) {
  return mix64(environment.seed + static_cast<std::uint64_t>(number));
}

class GridPlacement : public Placement {
 public:
  /// @param number  of the row space in its bucket: turns its groups against the others'
  GridPlacement(const RowSpace& space, int number, const SchemeEnvironment& environment)
      : Placement(space, {environment.size, 1}, {}),
        number_(number),
        size_(environment.size),
        key_(key_of(environment, number)),
        groups_(space.rows, 1, 0, key_),
        workspace_(environment.context) {
    GridPlacement::adapt(first_guess(space, size_));
  }

  Index universe() const override { return groups_.universe(); }
  Index size(int group) const override { return groups_.size(group); }
  Place place(Index row) const override {
    const RowGroups::Place place = groups_.place(row);
    return {static_cast<int>(place.group), place.position};
  }

  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override {
    partition(context, groups_, rows, indices, sources, group_begin, workspace_);
  }
  void name_rows(const Context& context, int group, std::span<const Index> pulled,
                 std::span<Index> rows) override {
    rows_at(context, groups_, group, pulled, rows);
  }

  void adapt(const SpaceStatistics& statistics) override {
    const Grid grid = cheapest_grid(space(), size_, statistics);
    set_grid(grid);
    groups_ = RowGroups(space().rows, grid.row_groups, number_ % grid.row_groups, key_);
    const auto pushed = static_cast<Index>(statistics.touched_mean / grid.row_groups);
    code_ = cheapest_code(groups_.universe(), std::min(pushed, groups_.universe()));
  }
  SpaceChoice choice() const override {
    return {std::string(name_of(code_)), grid().row_groups, grid().column_slices};
  }

 private:
  int number_;
  int size_;
  std::uint64_t key_;
  RowGroups groups_;
  IndexCode code_ = IndexCode::coo;  // of most pushes
  SortWorkspace workspace_;
};

/// The same groups where rows are announced. Slices then cost no indices: as many as there can be.
class GridOwnership : public Ownership {
 public:
  GridOwnership(const RowSpace& space, int number, const SchemeEnvironment& environment)
      : grid_(possible_grids(space, environment.size).back()),
        groups_(space.rows, grid_.row_groups, number % grid_.row_groups,
                key_of(environment, number)) {}

  Grid grid() const override { return grid_; }
  void choose(const Context& context, std::span<const Index> united,
              std::span<const std::span<const Index>>, std::span<std::int32_t> groups) override {
    find_groups(context, groups_, united, groups);
  }

 private:
  Grid grid_;
  RowGroups groups_;
};

std::unique_ptr<Scheme> create(const SchemeEnvironment& environment) {
  if (!environment.bucket->announce) return push_and_pull<GridPlacement>(environment);
  return values_alone<GridOwnership>(environment);
}

Cost cost(const Workload& workload) {
  const bool in_pieces = pulls_in_pieces(workload.spaces, workload.size, workload.statistics);
  Cost total = push_pull_overhead(workload.spaces, workload.size, in_pieces);
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const RowSpace& space = workload.spaces[i];
    const SpaceStatistics& known = workload.statistics[i];
    const Grid grid = cheapest_grid(space, workload.size, known);
    total += expected_cost(space, workload.size, known, grid);
    total += push_pull_compute(space, workload.size, known, {grid, 1, 1, false, in_pieces});
    total.reduce.work.sorted_rows += known.touched_max;
  }
  return total;
}

double workspace_bytes(const Workload& workload) {
  double bytes = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const Grid grid = cheapest_grid(workload.spaces[i], workload.size, workload.statistics[i]);
    bytes +=
        push_pull_workspace_bytes(workload.spaces[i], workload.size, workload.statistics[i], grid,
                                  ceil_div<Index>(workload.spaces[i].rows, grid.row_groups));
  }
  return bytes;
}

const SchemeRegistration registration({
    "balanced",
    "row groups by a keyed bijection x column slices: equal parts, no exchange before the push",
    {Communication::point_to_point, Aggregation::one_shot, Partition::parallelism,
     Balance::balanced, Format::cheapest_code},
    create,
    cost,
    workspace_bytes,
    false,
    {SchemeOption::announce},
});

}  // namespace
}  // namespace sparsesync
