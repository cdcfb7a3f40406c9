// Push and pull: the scheme that every placement of rows on servers shares.
//
// Push: each worker sends each server its rows of the server's group, the server's slice of their
// values. Pull: each server sends all workers its slice of its group's sums, and its share of the
// group's indices: the c servers of a group divide them. Sums are made in rank order. A pull is an
// all-gather of messages and goes in any of its ways (message_gather.h). Which row of the result a
// value belongs to is known once all indices have come, as they increase over all groups. So where
// a pull is large and goes point to point, indices go ahead of values: the union is then put into
// order, and one server's values after another brought to their rows, while the rest is on its way.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "schemes/placement.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// One placement for each row space of the input: of the bucket's tensors, or of what a scheme
/// makes of them.
using Placements = std::vector<std::unique_ptr<Placement>>;

/// @param pulling  how the servers' messages go
std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment, Placements placements,
                                      Communication pulling);

/// The same where all row spaces are placed alike.
/// @tparam Kind  made from a row space, its number in the bucket and the environment
template <typename Kind>
std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment,
                                      Communication pulling = Communication::point_to_point) {
  Placements placements;
  for (const RowSpace& space : row_spaces(environment.bucket->tensors)) {
    const auto number = static_cast<int>(placements.size());
    placements.push_back(std::make_unique<Kind>(space, number, environment));
  }
  return push_and_pull(environment, std::move(placements), pulling);
}

// ---- The account of what that moves.

/// How a pull's messages go: of each server to all workers.
struct Pulling {
  Communication way = Communication::point_to_point;
  bool in_pieces = false;  // indices ahead of values
};

/// Whether a pull's indices go ahead, in messages of their own, so that rows are put into order
/// while their values are still on their way. It is worth it where a message has 96 kB of values or
/// more: up to 100 Gbit/s they are then longer on their way than a processor is busy with one
/// message more (7.7 µs; about 3 µs), and the header of one is a 3,000th of them.
/// @param rounds  in which all of it crosses
bool pulls_in_pieces(std::span<const RowSpace> spaces, int size, const Statistics& statistics,
                     int rounds = 1);

/// What crosses in one step, exactly.
/// @param sets  the workers' index sets, one IndexSets for each placement's row space
Traffic push_pull_traffic(const Placements& placements, int size, int rounds, Pulling pulling,
                          std::span<const IndexSets> sets);

/// How unevenly the placements spread elements over the servers.
Imbalance push_pull_imbalance(const Placements& placements, int size,
                              std::span<const IndexSets> sets);

/// What a pull in pieces costs over one of whole messages.
PhaseCost pieces_overhead(int size);

/// Steps, messages and the bytes of headers and numbers: what costs even where no row is touched.
/// The pull goes point to point.
Cost push_pull_overhead(std::span<const RowSpace> spaces, int size, bool in_pieces);

/// How the processors come by a row space's rows.
struct PushPullWork {
  Grid grid;
  // Of the server that has most, over the mean one.
  double push_imbalance = 1;
  double pull_imbalance = 1;
  bool in_order = false;   // as they are pulled
  bool in_pieces = false;  // pulled: they are put into order and placed while others are on the way
};
/// What the processors do of one row space; nothing crosses.
Cost push_pull_compute(const RowSpace& space, int size, const SpaceStatistics& statistics,
                       const PushPullWork& how);

/// Bytes that a worker needs for one row space whatever the placement, as expected from statistics:
/// pushes sent and received, own sums as kept and as sent, the pull as received and in order.
double push_pull_workspace_bytes(const RowSpace& space, int size, const SpaceStatistics& statistics,
                                 Grid grid, Index universe);

}  // namespace sparsesync
