// What all workers agree on of a bucket: when they register it, when its scheme chooses anew, and
// in the signature that its messages carry.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/session/control_channel.h"
#include "schemes/bucket.h"
#include "sparsesync/transport.h"

namespace sparsesync {

class RegisteredBucket;

/// Options that must be the same on all workers.
ControlChannel::Statement statement_of(const SchemeOptions& options);

/// The workers of a node as the transport tells them, if all nodes have as many and each those of
/// consecutive ranks; 0 if not.
int workers_of_a_node(const Transport& transport);

/// The signature after one more agreement.
std::uint64_t signature_after(std::uint64_t signature, const std::string& agreed);

/// Makes a bucket on all workers, or on none: compares in full what they must agree on. Called by
/// all alike. Does not synchronize the stream.
/// @param seed           the session's
/// @param late_refusals  SessionOptions::late_refusals of this worker; the bucket's are those of
///                       any
/// @throws AgreementError on all workers, if they differ
/// @throws InputError if the bucket is not a valid one, UnsupportedError if its scheme asks for
///         what the transport has not: on all workers alike
/// @throws BudgetError, std::bad_alloc if this worker has not the memory, RefusedError if another
///         one has not
std::unique_ptr<RegisteredBucket> make_agreed(Transport& transport, ControlChannel& control,
                                              const Context& context, BucketSpec spec,
                                              std::uint64_t seed, bool late_refusals);

/// Lets a bucket's scheme choose anew from what all workers saw of the last step. Called by all
/// alike, between steps.
/// @throws what Transport throws, ProtocolError
void adapt_agreed(ControlChannel& control, RegisteredBucket& bucket);

/// Cuts the bucket's phases into `rounds` rounds on all workers, or into `otherwise` on all if one
/// lacks the memory for that. Called by all alike. Does not synchronize the stream.
/// @throws what Transport throws, BudgetError, std::bad_alloc
void change_rounds(ControlChannel& control, RegisteredBucket& bucket, int rounds, int otherwise);

/// Makes something on all workers, or on none: `make` may throw for want of memory.
/// @param subject  stands before the reason in the text
/// @param flag     what this worker says beside it
/// @return whether a worker said `flag`
/// @throws BudgetError, std::bad_alloc, RefusedError as make_agreed()
bool agree_to_make(ControlChannel& control, const std::string& subject,
                   const std::function<void()>& make, bool flag = false);

/// A change that may throw for want of memory, and its name in texts.
struct Change {
  std::string subject;
  std::function<void()> make;
};

/// Makes a change on all workers, or, where one has not the memory for it, another one on all.
/// Called by all alike.
/// @return whether it is the first one
/// @throws what Transport throws; Error, which ends the session, if this worker cannot go back
bool agree_to_change(ControlChannel& control, const Change& change, const Change& otherwise);

}  // namespace sparsesync
