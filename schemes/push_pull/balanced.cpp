// balanced: the default, an original scheme. A keyed bijection divides rows into groups, and
// columns are divided into slices. Every worker thus owns an equal part in every step, without a
// prior exchange. The group indices are the positions that the bijection assigns to rows.
#include "kernels/base/bits.h"
#include "kernels/partition/partition.h"
#include "kernels/partition/row_groups.h"
#include "schemes/indices_first/indices_first.h"
#include "schemes/push_pull/cost.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

/// Returns assumed statistics before the first step: 1% of the rows are touched, and half of them
/// are shared.
SpaceStatistics first_guess(const RowSpace& space, int size) {
  const double touched = std::max(1.0, static_cast<double>(space.rows) / 100);
  return {touched, touched, std::min(static_cast<double>(space.rows), touched * (1 + size) / 2)};
}

std::uint64_t key_of(const SchemeEnvironment& environment, int number) {
  return mix64(environment.seed + static_cast<std::uint64_t>(number));
}

class GridPlacement : public Placement {
 public:
  /// @param space        the row space
  /// @param number       index of the row space in its bucket; rotates its groups relative to those
  ///     of others
  /// @param environment  settings of the scheme
  GridPlacement(const RowSpace& space, int number, const SchemeEnvironment& environment)
      : Placement(space, {environment.size, 1}, {}),
        number_(number),
        size_(environment.size),
        key_(key_of(environment, number)),
        groups_({.rows = space.rows, .seed = key_}),
        workspace_(environment.context) {
    GridPlacement::adapt(first_guess(space, size_));
  }

  Index universe() const override { return groups_.universe(); }
  Index size(int group) const override { return groups_.size(group); }
  Place locate(Index row) const override {
    const RowGroups::Place place = groups_.locate(row);
    return {static_cast<int>(place.group), place.position};
  }

  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override {
    partition(context, groups_, rows, indices, sources, group_begin, workspace_);
  }
  void name_rows(const Context& context, std::span<const Naming> groups) override {
    jobs_.clear();
    for (const Naming& of : groups) jobs_.push_back({of.group, of.pulled, of.rows});
    rows_at_all(context, groups_, jobs_);
  }

  void adapt(const SpaceStatistics& statistics) override {
    const Grid grid = cheapest_grid(space(), size_, statistics);
    set_grid(grid);
    groups_ = RowGroups({.rows = space().rows,
                         .groups = grid.row_groups,
                         .offset = number_ % grid.row_groups,
                         .seed = key_});
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
  IndexCode code_ = IndexCode::coo;  // code of most pushed messages
  SortWorkspace workspace_;
  std::vector<PositionsJob> jobs_;
};

/// Assigns rows to the same groups in buckets that announce. Slices then need no indices, so this
/// uses as many slices as possible.
class GridOwnership : public Ownership {
 public:
  GridOwnership(const RowSpace& space, int number, const SchemeEnvironment& environment)
      : grid_(possible_grids(space, environment.size).back()),
        groups_({.rows = space.rows,
                 .groups = grid_.row_groups,
                 .offset = number % grid_.row_groups,
                 .seed = key_of(environment, number)}) {}

  Grid grid() const override { return grid_; }
  void choose(const Context& context, std::span<const Index> united,
              std::span<const std::span<const Index>>, std::span<std::int32_t> groups,
              OwnersWorkspace&) const override {
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
  return push_pull_cost(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const Grid grid = cheapest_grid(space, workload.size, known);
    Cost bytes = grid_cost(space, workload.size, known, grid);
    bytes.reduce.work.sorted_rows = known.touched_max;
    return PlacedCost{.bytes = bytes, .how = {.grid = grid}};
  });
}

double workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const Grid grid = cheapest_grid(space, workload.size, known);
    return push_pull_workspace_bytes(workload, space, known, grid,
                                     ceil_div<Index>(space.rows, grid.row_groups),
                                     PulledOrder::mixed);
  });
}

const SchemeRegistration registration({
    .name = "balanced",
    .summary =
        "row groups by a keyed bijection x column slices: equal parts without a prior exchange",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::cheapest_code},
    .create = create,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
    .heeds = {SchemeOption::announce},
});

}  // namespace
}  // namespace sparsesync
