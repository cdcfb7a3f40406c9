// Who owns what in `balanced`: a row space on its grid, and the account of what that moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bijection.h"
#include "schemes/exchange.h"
#include "schemes/grid.h"
#include "schemes/message.h"
#include "schemes/scheme.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// A row space on its grid. Arithmetic alone, the same on all workers.
class GridPlan {
 public:
  /// @param number  of the row space in its bucket: turns its groups against the others'
  GridPlan(const RowSpace& space, int number, Grid grid, std::uint64_t seed)
      : space_(space),
        grid_(grid),
        groups_(space.rows, grid.row_groups, number % grid.row_groups,
                mix64(seed + static_cast<std::uint64_t>(number))) {}

  const RowSpace& space() const { return space_; }
  const RowGroups& groups() const { return groups_; }
  Grid grid() const { return grid_; }
  Index slice_width() const { return space_.width / grid_.column_slices; }
  Index slice_bytes() const { return slice_width() * element_bytes(space_.dtype); }
  int group_of(int server) const { return server / grid_.column_slices; }
  int slice_of(int server) const { return server % grid_.column_slices; }
  Index first_column(int server) const { return slice_of(server) * slice_width(); }

  /// The positions that a round moves, in every group.
  IndexRange range(Round round) const { return round.part_of(groups_.universe()); }
  /// Those of them whose indices a server sends in the pull.
  IndexRange share(Round round, int server) const;

  SectionSpec push_section(Round round) const;
  SectionSpec pull_section(Round round, int server) const;

 private:
  RowSpace space_;
  Grid grid_;
  RowGroups groups_;
};

/// What `balanced` moves in one step, exactly.
/// @param sets  the workers' index sets, one IndexSets for each plan's row space
Traffic balanced_traffic(std::span<const GridPlan> plans, int size, int rounds,
                         std::span<const IndexSets> sets);

/// How unevenly it spreads elements over the servers.
Imbalance balanced_imbalance(std::span<const GridPlan> plans, int size,
                             std::span<const IndexSets> sets);

/// What it costs in one step, as expected from statistics, each row space on its cheapest grid.
Cost balanced_cost(std::span<const RowSpace> spaces, int size, const Statistics& statistics);

/// Bytes of workspace that a worker needs, as expected from statistics.
double balanced_workspace_bytes(std::span<const RowSpace> spaces, int size,
                                const Statistics& statistics);

}  // namespace sparsesync
