// Partitions rows into even ranges of row numbers. Used by sparse_ps, split_all_gather,
// dynamic_split and block_ps. It is as imbalanced as the gradient, because frequent rows lie in few
// ranges.
#pragma once

#include <span>

#include "schemes/push_pull/cost.h"
#include "schemes/push_pull/partitioner.h"

namespace sparsesync {

/// Creates partitioners with an even range of each row space for each worker. Indices are sent as
/// COO, relative to the start of the range.
/// @param spaces       the row spaces
/// @param environment  settings of the scheme
/// @param densifies    whether a range is sent dense, without indices, if that is smaller
Placements even_placements(std::span<const RowSpace> spaces, const SchemeEnvironment& environment,
                           bool densifies = false);

/// Predicts the cost of pushing to even ranges and pulling from them, for push_pull_cost().
PlacedCost even_servers_cost(const RowSpace& space, int size, const SpaceStatistics& known);

/// Predicts the cost of pushing to even ranges and all-gathering sums with SchemeOptions::pattern.
/// @param workload   the bucket
/// @param densifies  whether a range is sent dense, without indices, if that is smaller
Cost split_cost(const Workload& workload, bool densifies);

/// Predicts the bytes of workspace for one row space.
double even_range_workspace_bytes(const Workload& workload, const RowSpace& space,
                                  const SpaceStatistics& known);
/// Predicts the bytes of workspace for all row spaces.
double even_ranges_workspace_bytes(const Workload& workload);

}  // namespace sparsesync
