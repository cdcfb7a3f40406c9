// Exact traffic of push and pull from index sets, and predicted costs from statistics.
#pragma once

#include <span>

#include "kernels/base/function_view.h"
#include "schemes/cost.h"
#include "schemes/push_pull/partitioner.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// Describes how each server's message reaches all workers.
struct Pulling {
  Communication variant = Communication::point_to_point;  // communication pattern
  bool in_pieces = false;                                 // whether indices are sent before values
};

/// Returns the exact traffic of one step.
/// @param placements  [row space]
/// @param size        number of workers
/// @param rounds      number of rounds
/// @param pulling     how messages are pulled
/// @param sets        [row space]: the workers' index sets
Traffic push_pull_traffic(const Placements& placements, int size, int rounds, Pulling pulling,
                          std::span<const IndexSets> sets);

/// Returns the imbalance of elements among the servers.
Imbalance push_pull_imbalance(const Placements& placements, int size,
                              std::span<const IndexSets> sets);

/// Returns whether a pull sends indices in separate messages before values, so that rows are sorted
/// while values are in flight.
///
/// This pays off if a message has at least 96 kB of values. At up to 100 Gbit/s their transfer
/// takes longer (7.7 µs) than processing an additional message (about 3 µs). The additional header
/// is 1/3000 of their size.
/// @param workload  the bucket
/// @param rounds    number of rounds of the pull
bool pulls_in_pieces(const Workload& workload, int rounds = 1);

/// Returns the additional cost of a pull in two pieces.
PhaseCost pieces_overhead(int size);

/// Properties of a partitioner that determine CPU work.
struct PushPullWork {
  Grid grid;
  // Rows of the busiest server, relative to the mean.
  double push_imbalance = 1;
  double pull_imbalance = 1;
  bool in_order = false;  // whether pulled rows arrive in order
};
/// Predicts the CPU work for one row space, without bytes.
/// @param space       the row space
/// @param size        number of workers
/// @param statistics  of the row space
/// @param how         properties of the partitioner
/// @param in_pieces   whether pulled indices are sent first, so that sorting and scattering overlap
///     with communication
Cost push_pull_compute(const RowSpace& space, int size, const SpaceStatistics& statistics,
                       const PushPullWork& how, bool in_pieces);

/// The part of one row space's cost that depends on its partitioner.
struct PlacedCost {
  Cost bytes;  // without headers and counts; includes CPU work that other partitioners do not have
  PushPullWork how;
};
/// Predicts the cost of a push and a point-to-point pull.
/// @param workload  the bucket
/// @param placed    returns the partitioner's part of a row space's cost
Cost push_pull_cost(
    const Workload& workload,
    const FunctionView<PlacedCost(const RowSpace& space, const SpaceStatistics& known)>& placed);

/// Returns the bytes that a worker needs, besides messages, for the sums of `united` rows: those of
/// its partition, and all of them in order.
double sums_workspace_bytes(const RowSpace& space, int size, double united, PulledOrder order);

/// Predicts the bytes of workspace for one row space with any partitioner: sent and received
/// pushes, and sums.
/// @param workload    the bucket
/// @param space       the row space
/// @param statistics  of the row space
/// @param grid        the division among servers
/// @param universe    number of indices of the largest group
/// @param order       order of pulled rows
double push_pull_workspace_bytes(const Workload& workload, const RowSpace& space,
                                 const SpaceStatistics& statistics, Grid grid, Index universe,
                                 PulledOrder order);

}  // namespace sparsesync
