// What workers state of a bucket when they register it, and the signature that its messages carry
// from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/agreement.h"
#include "engine/registered_bucket.h"
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

/// Makes a bucket whose statement all workers agreed on. Called by all alike.
/// @param signature  of the statement
/// @throws InputError if it is not a valid one, UnsupportedError if its scheme asks for what the
///         transport has not: on all workers alike
/// @throws BudgetError, std::bad_alloc if this worker has not the memory, RefusedError if another
///         one has not
std::unique_ptr<RegisteredBucket> make_agreed(Transport& transport, ControlChannel& control,
                                              const Context& context, BucketSpec spec,
                                              std::uint64_t seed, std::uint64_t signature);

/// Makes something on all workers, or on none: `make` may throw for want of memory.
/// @param subject  stands before the reason in the text
/// @throws BudgetError, std::bad_alloc, RefusedError as make_agreed()
void agree_to_make(ControlChannel& control, const std::string& subject,
                   const std::function<void()>& make);

/// Reads a number of what a worker stated about its step, and the space behind it.
/// @param at  where the number begins; where the next one does, after that
/// @throws ProtocolError if there is none
double take_number(const std::string& text, std::size_t& at);

}  // namespace sparsesync
