// What push and pull move and cost: exactly, from index sets, and as expected from statistics.
#pragma once

#include <span>

#include "kernels/base/function_view.h"
#include "schemes/cost.h"
#include "schemes/push_pull/partitioner.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// How a pull's messages go: of each server to all workers.
struct Pulling {
  Communication variant = Communication::point_to_point;
  bool in_pieces = false;  // indices ahead of values
};

/// What crosses in one step, exactly.
/// @param sets  the workers' index sets, one IndexSets for each placement's row space
Traffic push_pull_traffic(const Placements& placements, int size, int rounds, Pulling pulling,
                          std::span<const IndexSets> sets);

/// How unevenly the placements spread elements over the servers.
Imbalance push_pull_imbalance(const Placements& placements, int size,
                              std::span<const IndexSets> sets);

/// Whether a pull's indices go ahead, in messages of their own, so that rows are put into order
/// while their values are still on their way. It is worth it where a message has 96 kB of values or
/// more: up to 100 Gbit/s they are then longer on their way than a processor is busy with one
/// message more (7.7 µs; about 3 µs), and the header of one is a 3,000th of them.
/// @param rounds  in which all of it crosses
bool pulls_in_pieces(const Workload& workload, int rounds = 1);

/// What a pull in pieces costs over one of whole messages.
PhaseCost pieces_overhead(int size);

/// How the processors come by a row space's rows.
struct PushPullWork {
  Grid grid;
  // Of the server that has most, over the mean one.
  double push_imbalance = 1;
  double pull_imbalance = 1;
  bool in_order = false;  // as they are pulled
};
/// What the processors do of one row space; nothing crosses.
/// @param in_pieces  pulled: rows are put into order and placed while others are on the way
Cost push_pull_compute(const RowSpace& space, int size, const SpaceStatistics& statistics,
                       const PushPullWork& how, bool in_pieces);

/// What of one row space's cost its placement decides.
struct PlacedCost {
  Cost bytes;  // headers and numbers left out; and work that other placements have not
  PushPullWork how;
};
/// What a push and a pull point to point cost, given what each row space does.
Cost push_pull_cost(
    const Workload& workload,
    const FunctionView<PlacedCost(const RowSpace& space, const SpaceStatistics& known)>& placed);

/// Bytes that a worker needs for the sums of so many rows beside messages: its own, and all of them
/// in order.
double sums_workspace_bytes(const RowSpace& space, int size, double united, PulledOrder order);

/// Bytes that a worker needs for one row space whatever the placement, as expected from statistics:
/// pushes sent and received, and sums.
/// @param universe  of a group's indices
double push_pull_workspace_bytes(const Workload& workload, const RowSpace& space,
                                 const SpaceStatistics& statistics, Grid grid, Index universe,
                                 PulledOrder order);

}  // namespace sparsesync
