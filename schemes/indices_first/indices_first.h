// Values alone: the scheme for workers that all know which rows each of them touched.
//
// The index sets cross first: in the reduce phase before the values, or ahead of it where the step
// was announced. Then each worker sends each server the values of its rows of the server's group,
// the server's slice of them, and no index; and each server sends all others its slice of the
// sums. Sums are made in rank order.
#pragma once

#include <memory>

#include "schemes/indices_first/owner_policy.h"
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

}  // namespace sparsesync
