// Values-only exchange: a scheme in which all workers know all index sets.
//
// Index sets are sent first: in the reduce phase before the values, or in an earlier announce
// phase. Then each worker sends each server the values of its rows in the server's group,
// restricted to the server's column slice, without indices. In the gather phase each server sends
// its slice of the sums to all others. Sums are added in rank order.
#pragma once

#include <memory>
#include <span>

#include "schemes/cost.h"
#include "schemes/indices_first/exchange_plan.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// Creates the scheme.
/// @param environment  settings of the scheme
/// @param ownerships   [row space]: assigns rows to owners
std::unique_ptr<Scheme> values_alone(const SchemeEnvironment& environment, Ownerships ownerships);

/// Creates the scheme with the same kind of owner assignment for all row spaces.
/// @tparam Kind  an Ownership, constructed from a row space, its index in the bucket and the
///     environment
template <typename Kind>
std::unique_ptr<Scheme> values_alone(const SchemeEnvironment& environment) {
  return values_alone(environment, of_each_space<Kind, Ownership>(environment));
}

/// Returns the exact traffic of one step.
/// @param spaces      the row spaces
/// @param ownerships  [row space]
/// @param rounds      number of rounds
/// @param sets        [row space]: the workers' index sets
Traffic values_alone_traffic(std::span<const RowSpace> spaces, const Ownerships& ownerships,
                             int rounds, std::span<const IndexSets> sets);

/// Returns the imbalance of all received (push) and sent (pull) bytes. The imbalance of the push
/// phase alone is not meaningful, because owners are among the workers that touched a row.
Imbalance values_alone_imbalance(const Traffic& traffic);

/// Predicts the cost of exchanging index sets, including headers and counts.
PhaseCost set_exchange_cost(const Workload& workload);

/// Predicts the bytes of workspace that a worker needs for one row space.
double values_alone_workspace_bytes(const RowSpace& space, int size,
                                    const SpaceStatistics& statistics);

}  // namespace sparsesync
