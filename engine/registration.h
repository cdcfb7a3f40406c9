// What workers state of a bucket when they register it, and the signature that its messages carry
// from then on.
#pragma once

#include <cstdint>
#include <string>

#include "engine/agreement.h"
#include "schemes/bucket.h"
#include "schemes/transport.h"

namespace sparsesync {

/// All that must be the same on all workers. The bucket need not be a valid one.
ControlChannel::Statement statement_of(const BucketSpec& spec, std::uint64_t seed);

ControlChannel::Statement statement_of(const SchemeOptions& options);

/// The workers of a node as the transport tells them, if all nodes have as many and each those of
/// consecutive ranks; 0 if not.
int workers_of_a_node(const Transport& transport);

/// A hash of what was agreed.
std::uint64_t signature_of(const ControlChannel::Statement& statement);

/// The signature after one more agreement.
std::uint64_t signature_after(std::uint64_t signature, const std::string& agreed);

/// Reads a number of what a worker stated about its step, and the space behind it.
/// @param at  where the number begins; where the next one does, after that
/// @throws ProtocolError if there is none
double take_number(const std::string& text, std::size_t& at);

}  // namespace sparsesync
