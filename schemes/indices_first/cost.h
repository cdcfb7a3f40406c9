// What values alone move and cost: exactly, from index sets, and as expected from statistics.
#pragma once

#include <span>

#include "schemes/cost.h"
#include "schemes/indices_first/owner_policy.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// What crosses in one step, exactly.
/// @param sets  the workers' index sets, one IndexSets for each row space
Traffic values_alone_traffic(std::span<const RowSpace> spaces, const Ownerships& ownerships,
                             int rounds, std::span<const IndexSets> sets);

/// How unevenly workers receive (push) and send (pull) in all: where owners are those who touched a
/// row, a push by itself is never even.
Imbalance values_alone_imbalance(const Traffic& traffic);

/// Bytes that every worker sends and receives for the index sets ahead, with header and numbers.
PhaseCost set_exchange_cost(const Workload& workload);

/// Bytes that a worker needs for one row space, as expected from statistics.
double values_alone_workspace_bytes(const RowSpace& space, int size,
                                    const SpaceStatistics& statistics);

}  // namespace sparsesync
