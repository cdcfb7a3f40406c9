// Values alone: the scheme for workers that all know which rows each of them touched.
//
// The index sets cross first: in the reduce phase before the values, or ahead of it where the step
// was announced. Then each worker sends each server the values of its rows of the server's group,
// the server's slice of them, and no index; and each server sends all others its slice of the
// sums. Sums are made in rank order.
#pragma once

#include <memory>
#include <span>

#include "schemes/cost.h"
#include "schemes/indices_first/exchange_plan.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// @param ownerships  who owns which rows, row space by row space
std::unique_ptr<Scheme> values_alone(const SchemeEnvironment& environment, Ownerships ownerships);

/// The same where all row spaces are owned alike.
/// @tparam Kind  made from a row space, its number in the bucket and the environment
template <typename Kind>
std::unique_ptr<Scheme> values_alone(const SchemeEnvironment& environment) {
  return values_alone(environment, of_each_space<Kind, Ownership>(environment));
}

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
