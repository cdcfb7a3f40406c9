// Rows on servers by even ranges of their numbers: what sparse_ps, split_all_gather, dynamic_split
// and block_ps share. As uneven as the gradient is: what everybody touches lies in few ranges.
#pragma once

#include <span>

#include "schemes/push_pull/cost.h"
#include "schemes/push_pull/partitioner.h"

namespace sparsesync {

/// A server on every worker for an even range of each row space. Indices cross as COO, counted from
/// where the range begins.
/// @param densifies  whether a range crosses whole, without indices, where that takes fewer bytes
Placements even_placements(std::span<const RowSpace> spaces, const SchemeEnvironment& environment,
                           bool densifies = false);

/// The cost of pushing to even ranges and pulling from them (push_pull_cost()).
PlacedCost even_servers_cost(const RowSpace& space, int size, const SpaceStatistics& known);

/// The cost where sums go to all workers in the way of SchemeOptions::pattern.
/// @param densifies  whether a range crosses whole, without indices, where that takes fewer bytes
Cost split_cost(const Workload& workload, bool densifies);

/// Bytes of workspace that a worker needs for one row space.
double even_range_workspace_bytes(const Workload& workload, const RowSpace& space,
                                  const SpaceStatistics& known);
/// The same for all of them.
double even_ranges_workspace_bytes(const Workload& workload);

}  // namespace sparsesync
