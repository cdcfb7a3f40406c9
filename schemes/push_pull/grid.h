// How the workers divide a row space: row groups × column slices.
#pragma once

#include <vector>

#include "schemes/cost.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// g row groups × c column slices, g · c = workers. Server j · c + q owns slice q of group j.
struct Grid {
  int row_groups = 1;
  int column_slices = 1;

  /// The row group that a server owns a slice of.
  int group_of(Rank server) const { return server.value / column_slices; }
  /// Which slice that is.
  int slice_of(Rank server) const { return server.value % column_slices; }
  /// Elements of a row that one server has.
  Index slice_width(const RowSpace& space) const { return space.width / column_slices; }
  /// The same in bytes.
  Index slice_bytes(const RowSpace& space) const {
    return slice_width(space) * element_bytes(space.dtype);
  }
  /// Where they begin in the row.
  Index first_column(const RowSpace& space, Rank server) const {
    return slice_of(server) * slice_width(space);
  }
  friend bool operator==(Grid, Grid) = default;
};

/// All grids that fit: c divides the workers and the width, and a slice is at least 16 bytes or the
/// whole row.
std::vector<Grid> possible_grids(const RowSpace& space, int size);

/// What one row space costs in one step on a grid, message headers left out. Imbalance is taken as
/// the largest of g binomial shares.
Cost grid_cost(const RowSpace& space, int size, const SpaceStatistics& statistics, Grid grid);

/// Of the grids with hardly more bytes for the busiest worker than the best one, within 1%, that
/// with the fewest slices.
Grid cheapest_grid(const RowSpace& space, int size, const SpaceStatistics& statistics);

}  // namespace sparsesync
