// The retry of a refused step.
#pragma once

#include "engine/session/run_phase.h"
#include "kernels/base/function_view.h"
#include "sparsesync/bucket.h"

namespace sparsesync {

class RegisteredBucket;

/// Retries a step that was refused because some worker lacks memory: in twice as many rounds, until
/// it succeeds or kMostRounds is reached. If its gradients may have changed, only the next steps
/// have more rounds. Called by all workers alike.
/// @param phase     was refused, as all workers know
/// @param refused   its outcome on this worker
/// @param run_step  runs the step from its beginning to the end of the phase
/// @return the last outcome
/// @throws what ends the session
PhaseOutcome retry_step(const PhaseGround& ground, RegisteredBucket& bucket, Phase phase,
                        PhaseOutcome refused, FunctionView<PhaseOutcome()> run_step);

}  // namespace sparsesync
