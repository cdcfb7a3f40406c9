// Push and pull: the scheme that all partitioners share.
//
// Push: each worker sends each server its rows in the server's group, restricted to the server's
// column slice. Servers add rows in rank order.
//
// Pull: each server sends all workers its slice of its group's sums, and its share of the group's
// indices. The c servers of a group divide the indices. A pull is an all-gather of messages, in any
// of the patterns of message_gather.h.
//
// A worker can compute the final position of every row as soon as all indices have arrived. So a
// large point-to-point pull sends indices before values. Each worker then sorts the union, and
// scatters one server's values after another, while the remaining values are in flight.
#pragma once

#include <memory>

#include "schemes/push_pull/partitioner.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// Creates the scheme.
/// @param environment  settings of the scheme
/// @param placements   [row space]: partitions rows among servers
/// @param pulling      communication pattern of pulled messages
std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment, Placements placements,
                                      Communication pulling = Communication::point_to_point);

/// Creates the scheme with the same kind of partitioner for all row spaces, and a point-to-point
/// pull.
/// @tparam Kind  a Placement, constructed from a row space, its index in the bucket and the
///     environment
template <typename Kind>
std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment) {
  return push_and_pull(environment, of_each_space<Kind, Placement>(environment));
}

}  // namespace sparsesync
