#include "engine/session/retry.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "engine/session/bucket_agreement.h"
#include "engine/session/control_channel.h"
#include "engine/session/registered_bucket.h"
#include "sparsesync/errors.h"

namespace sparsesync {
namespace {

/// Whether this worker refused because it lacks memory.
bool lacks_memory(const std::exception_ptr& refusal) {
  try {
    std::rethrow_exception(refusal);
  } catch (const BudgetError&) {
  } catch (const std::bad_alloc&) {
  } catch (...) {
    return false;
  }
  return true;
}

/// Whether another worker refused.
bool is_elsewhere(const std::exception_ptr& refusal) {
  try {
    std::rethrow_exception(refusal);
  } catch (const RefusedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Doubles the bucket's number of rounds, if BucketSpec leaves it open and every refusal was for
/// lack of memory. Returns to one round if kMostRounds did not help.
/// @param refusal  this worker's error
/// @return whether the bucket has more rounds now
bool use_more_rounds(ControlChannel& control, RegisteredBucket& bucket,
                     const std::exception_ptr& refusal) {
  if (bucket.spec().rounds) return false;
  constexpr const char* kNoHelp = "no help";
  const bool may_help =
      !bucket.awaits_gradients() && (lacks_memory(refusal) || is_elsewhere(refusal));
  const std::vector<std::string> all = control.all_gather(may_help ? "" : kNoHelp);
  if (std::find(all.begin(), all.end(), kNoHelp) != all.end()) return false;
  change_rounds(control, bucket, bucket.rounds() < kMostRounds ? 2 * bucket.rounds() : 1, 1);
  return bucket.rounds() > 1;
}

/// Whether all workers still have the gradients of the refused step. The same on all workers.
bool may_begin_again(const PhaseGround& ground, RegisteredBucket& bucket, Phase phase) {
  if (bucket.begins_with(phase)) return true;
  // Without late refusals, only the first message of a step can refuse it.
  if (!bucket.late_refusals) return false;
  constexpr const char* kIsGone = "gone";
  const std::vector<std::string> all =
      ground.control.all_gather(ground.hold_gradients() ? "" : kIsGone);
  return std::find(all.begin(), all.end(), kIsGone) == all.end();
}

}  // namespace

PhaseOutcome retry_step(const PhaseGround& ground, RegisteredBucket& bucket, Phase phase,
                        PhaseOutcome refused, FunctionView<PhaseOutcome()> run_step) {
  PhaseOutcome outcome = std::move(refused);
  while (outcome.refused && use_more_rounds(ground.control, bucket, outcome.error) &&
         may_begin_again(ground, bucket, phase)) {
    outcome = run_step();
  }
  return outcome;
}

}  // namespace sparsesync
