// The division of a row space among workers: row groups × column slices.
#pragma once

#include <vector>

#include "schemes/cost.h"
#include "sparsesync/rank.h"

namespace sparsesync {

/// g row groups × c column slices, with g · c = number of workers. Server j · c + q owns slice q of
/// group j.
struct Grid {
  int row_groups = 1;
  int column_slices = 1;

  /// Returns the row group of a server.
  int group_of(Rank server) const { return server.value / column_slices; }
  /// Returns the column slice of a server.
  int slice_of(Rank server) const { return server.value % column_slices; }
  /// Returns the number of elements of a row in one slice.
  Index slice_width(const RowSpace& space) const { return space.width / column_slices; }
  /// Returns the size of a row's slice in bytes.
  Index slice_bytes(const RowSpace& space) const {
    return slice_width(space) * element_bytes(space.dtype);
  }
  /// Returns the first column of a server's slice.
  Index first_column(const RowSpace& space, Rank server) const {
    return slice_of(server) * slice_width(space);
  }
  friend bool operator==(Grid, Grid) = default;
};

/// Returns all valid grids: c divides the number of workers and the width, and a slice has at least
/// 16 bytes or is the whole row.
std::vector<Grid> possible_grids(const RowSpace& space, int size);

/// Predicts the cost of one row space in one step on a grid, without message headers. Models
/// imbalance as the largest of g binomial shares.
Cost grid_cost(const RowSpace& space, int size, const SpaceStatistics& statistics, Grid grid);

/// Returns the grid with the fewest slices among those whose busiest worker sends or receives at
/// most 1% more bytes than with the best grid.
Grid cheapest_grid(const RowSpace& space, int size, const SpaceStatistics& statistics);

}  // namespace sparsesync
