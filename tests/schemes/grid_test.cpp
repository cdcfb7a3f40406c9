// Grids of `balanced`: the valid ones, and the cheapest one.
#include "schemes/push_pull/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace sparsesync::testing {
namespace {

TEST(Grid, divides_workers_and_width_and_keeps_slices_wide) {
  const auto slices = [](Index width, DType dtype, int size) {
    std::vector<int> all;
    for (const Grid grid : possible_grids({dtype, width, 1000, {}}, size)) {
      EXPECT_EQ(grid.row_groups * grid.column_slices, size);
      all.push_back(grid.column_slices);
    }
    return all;
  };
  EXPECT_EQ(slices(32, DType::f32, 16), (std::vector<int>{1, 2, 4, 8}));
  EXPECT_EQ(slices(128, DType::f32, 16), (std::vector<int>{1, 2, 4, 8, 16}));
  EXPECT_EQ(slices(32, DType::bf16, 16), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(slices(128, DType::f32, 7), (std::vector<int>{1}));
  EXPECT_EQ(slices(1, DType::f32, 16), (std::vector<int>{1}));
  EXPECT_EQ(slices(12, DType::f32, 12), (std::vector<int>{1, 2, 3}));
}

TEST(Grid, the_cheapest_has_the_fewest_slices_at_nearly_minimal_bytes) {
  const RowSpace space{DType::f32, 128, 793'471, {}};
  for (const double united : {1300.0, 5717.0, 40'000.0, 200'000.0}) {
    SCOPED_TRACE(united);
    const SpaceStatistics statistics{1186, 1250, united};
    const auto bytes = [&](Grid grid) {
      return grid_cost(space, 16, statistics, grid).bytes_busiest();
    };
    double fewest = std::numeric_limits<double>::infinity();
    for (const Grid grid : possible_grids(space, 16)) fewest = std::min(fewest, bytes(grid));
    const Grid best = cheapest_grid(space, 16, statistics);
    EXPECT_LE(bytes(best), 1.01 * fewest);
    for (const Grid grid : possible_grids(space, 16)) {
      if (grid.column_slices < best.column_slices) {
        EXPECT_GT(bytes(grid), 1.01 * fewest) << grid.column_slices;
      }
    }
  }
  // A few wide rows divide evenly by columns but not by rows. Many rows divide evenly by rows, too.
  EXPECT_EQ(cheapest_grid(space, 8, {1, 1, 8}).column_slices, 8);
  EXPECT_EQ(cheapest_grid(space, 8, {50'000, 50'000, 200'000}).column_slices, 1);
  EXPECT_EQ(cheapest_grid({DType::f32, 1, 793'471, {}}, 8, {1, 1, 8}).column_slices, 1);
}

}  // namespace
}  // namespace sparsesync::testing
