#include "schemes/push_pull/grid.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/bits.h"
#include "kernels/indices/index_code.h"

namespace sparsesync {
namespace {

constexpr Index kNarrowestSliceBytes = 16;
// More slices improve the balance, but each row is divided into more pieces that the CPU writes,
// reads and adds.
constexpr double kSliceWorth = 1.01;

/// Returns the bytes of the shortest code for an expected number of indices, which may be
/// fractional.
double code_bytes(Index universe, double count) {
  const Index whole = std::min(universe, static_cast<Index>(std::ceil(count)));
  if (whole <= 0) return 0;
  const auto bytes =
      static_cast<double>(encoded_bytes(cheapest_code(universe, whole), universe, whole));
  return bytes * count / static_cast<double>(whole);
}

}  // namespace

std::vector<Grid> possible_grids(const RowSpace& space, int size) {
  std::vector<Grid> grids;
  for (int slices = 1; slices <= size; ++slices) {
    const bool divides = size % slices == 0 && space.width % slices == 0;
    const bool wide = slices == 1 || space.row_bytes() / slices >= kNarrowestSliceBytes;
    if (divides && wide) grids.push_back({size / slices, slices});
  }
  return grids;
}

Cost grid_cost(const RowSpace& space, int size, const SpaceStatistics& statistics, Grid grid) {
  const double peers = size - 1.0;
  const auto rows = static_cast<double>(space.rows);
  const double slice_bytes = static_cast<double>(space.row_bytes()) / grid.column_slices;
  const auto universe = ceil_div<Index>(space.rows, grid.row_groups);
  const auto share = ceil_div<Index>(universe, grid.column_slices);
  const double pushed = statistics.touched_mean / grid.row_groups;
  const double pulled = statistics.united / grid.row_groups;
  const double push = pushed * slice_bytes + code_bytes(universe, pushed);
  const double pull = pulled * slice_bytes + code_bytes(share, pulled / grid.column_slices);
  // Distributes the rows of the union. Rows that many workers touched weigh more, but are
  // distributed in the same way.
  const double imbalance = expected_imbalance(statistics.united, rows, grid.row_groups);
  return {.reduce = {.bytes_sent = peers * push, .bytes_received = peers * push * imbalance},
          .gather = {.bytes_sent = peers * pull * imbalance, .bytes_received = peers * pull}};
}

Grid cheapest_grid(const RowSpace& space, int size, const SpaceStatistics& statistics) {
  const std::vector<Grid> grids = possible_grids(space, size);
  std::vector<double> bytes;
  for (const Grid grid : grids) {
    bytes.push_back(grid_cost(space, size, statistics, grid).bytes_busiest());
  }
  const double limit = kSliceWorth * *std::min_element(bytes.begin(), bytes.end());
  const auto enough =
      std::find_if(bytes.begin(), bytes.end(), [&](double some) { return some <= limit; });
  return grids[static_cast<std::size_t>(enough - bytes.begin())];
}

}  // namespace sparsesync
