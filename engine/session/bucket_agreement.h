// Agreement of all workers on a bucket: on its registration, on changes of its scheme, and on the
// signature that its messages have.
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

/// Returns the options that must be the same on all workers, as a statement.
ControlChannel::Statement statement_of(const SchemeOptions& options);

/// Returns the number of workers per node, as the transport reports it. Returns 0 unless all nodes
/// have the same number of workers and consecutive ranks.
int workers_of_a_node(const Transport& transport);

/// Returns the signature after one more agreement.
std::uint64_t signature_after(std::uint64_t signature, const std::string& agreed);

/// Creates a bucket on all workers, or on none, and compares all properties that must agree. All
/// workers call this function together. Does not synchronize the stream.
/// @param seed           the session's seed
/// @param late_refusals  this worker's SessionOptions::late_refusals. The bucket has late refusals
///                       if one worker has them
/// @throws AgreementError on all workers, if their buckets differ
/// @throws InputError on all workers, if the bucket is not valid
/// @throws UnsupportedError on all workers, if the transport lacks what the scheme needs
/// @throws BudgetError, std::bad_alloc if this worker lacks memory
/// @throws RefusedError if another worker lacks memory
std::unique_ptr<RegisteredBucket> make_agreed(Transport& transport, ControlChannel& control,
                                              const Context& context, BucketSpec spec,
                                              std::uint64_t seed, bool late_refusals);

/// Lets a bucket's scheme choose again from all workers' statistics of the last step. All workers
/// call this function together, between steps.
/// @throws what Transport throws, ProtocolError
void adapt_agreed(ControlChannel& control, RegisteredBucket& bucket);

/// Changes the number of rounds of the bucket's phases to `rounds` on all workers. If one worker
/// lacks memory, all workers change to `otherwise`. All workers call this function together. Does
/// not synchronize the stream.
/// @throws what Transport throws, BudgetError, std::bad_alloc
void change_rounds(ControlChannel& control, RegisteredBucket& bucket, int rounds, int otherwise);

/// Calls `make` on all workers and agrees on the outcome. `make` may throw because of a lack of
/// memory.
/// @param subject  begins the text of a refusal
/// @param flag     this worker's flag, which is sent along
/// @return whether a worker set `flag`
/// @throws BudgetError, std::bad_alloc if this worker lacks memory
/// @throws RefusedError if another worker lacks memory
bool agree_to_make(ControlChannel& control, const std::string& subject,
                   const std::function<void()>& make, bool flag = false);

/// A change that may throw because of a lack of memory, and its name in messages.
struct Change {
  std::string subject;
  std::function<void()> make;
};

/// Makes a change on all workers. If one worker lacks memory for it, all workers make the change
/// `otherwise` instead. All workers call this function together.
/// @return whether `change` was made
/// @throws what Transport throws; Error, which ends the session, if `otherwise` fails on this
///         worker
bool agree_to_change(ControlChannel& control, const Change& change, const Change& otherwise);

}  // namespace sparsesync
