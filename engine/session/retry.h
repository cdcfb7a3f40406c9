// Retries of refused steps.
#pragma once

#include "engine/session/run_phase.h"
#include "kernels/base/function_view.h"
#include "sparsesync/bucket.h"

namespace sparsesync {

class RegisteredBucket;

/// Retries a step that was refused because a worker lacks memory. Each attempt doubles the number
/// of rounds, until the step succeeds or kMostRounds is reached. If the step's gradients may have
/// changed, only the following steps use more rounds. All workers call this function together.
/// @param phase     the refused phase; all workers know of the refusal
/// @param refused   its outcome on this worker
/// @param run_step  runs the step from its first phase through `phase`
/// @return the last outcome
/// @throws errors that end the session
PhaseOutcome retry_step(const PhaseGround& ground, RegisteredBucket& bucket, Phase phase,
                        PhaseOutcome refused, FunctionView<PhaseOutcome()> run_step);

}  // namespace sparsesync
