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

#include "schemes/push_pull/partitioner.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// @param placements  one for each row space of the input
/// @param pulling     how the servers' messages go
std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment, Placements placements,
                                      Communication pulling = Communication::point_to_point);

/// The same where all row spaces are placed alike; the pull goes point to point.
/// @tparam Kind  made from a row space, its number in the bucket and the environment
template <typename Kind>
std::unique_ptr<Scheme> push_and_pull(const SchemeEnvironment& environment) {
  return push_and_pull(environment, of_each_space<Kind, Placement>(environment));
}

}  // namespace sparsesync
