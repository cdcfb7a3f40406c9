// The grid of `balanced`: how the workers divide into row groups × column slices, chosen by cost.
#pragma once

#include <vector>

#include "schemes/statistics.h"

namespace sparsesync {

/// g row groups × c column slices, g · c = workers. Server j · c + q owns slice q of group j.
struct Grid {
  int row_groups = 1;
  int column_slices = 1;
  friend bool operator==(Grid, Grid) = default;
};

/// All grids that fit: c divides the workers and the width, and a slice is at least 16 bytes or the
/// whole row.
std::vector<Grid> possible_grids(const RowSpace& space, int size);

/// What one row space costs in one step on a grid, message headers left out. Imbalance is taken as
/// the largest of g binomial shares.
Cost expected_cost(const RowSpace& space, int size, const SpaceStatistics& statistics, Grid grid);

/// Of the grids with hardly more bytes for the busiest worker than the best one, within 1%, that
/// with the fewest slices.
Grid cheapest_grid(const RowSpace& space, int size, const SpaceStatistics& statistics);

}  // namespace sparsesync
