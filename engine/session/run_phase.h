// Runs all rounds of one phase of one bucket, and retries a refused step if possible.
#pragma once

#include <exception>
#include <span>

#include "engine/session/auto_scheme.h"
#include "engine/session/control_channel.h"
#include "kernels/base/function_view.h"
#include "schemes/bucket.h"
#include "schemes/exchange.h"
#include "sparsesync/session.h"
#include "sparsesync/transport.h"

namespace sparsesync {

class RegisteredBucket;

/// Outcome of a phase on this worker.
struct PhaseOutcome {
  std::exception_ptr error;  // The error for the caller that waits; null on success.
  bool fatal = false;        // Whether the error ends the session.
  bool refused = false;      // Whether the phase was refused in this call. All workers know.
  bool is_final = true;      // Whether the phase will never run again.
};

/// The session's objects that a phase uses.
struct PhaseGround {
  Transport& transport;
  ControlChannel& control;
  const Context& context;
  Clock::duration deadline;  // timeout of each wait
  ExchangeWorkspace& workspace;
  /// Returns whether the gradients of the step's earlier phases are unchanged. If so, they stay
  /// unchanged until this phase ends.
  FunctionView<bool()> hold_gradients;
};

/// Runs a phase and passes its outcome to the bucket and to `choice`. Synchronizes the stream.
/// @param choice     chooses the scheme of a bucket of `auto`; null for other buckets
/// @param gradients  the step's gradients, or the rows that it announces; empty for a gather
/// @param source     provides the gradients of a reduce instead of `gradients`; null: not used
/// @throws errors that end the session
PhaseOutcome run_phase(const PhaseGround& ground, RegisteredBucket& bucket, AutoScheme* choice,
                       Phase phase, std::span<const Gradient> gradients, GradientSource* source);

}  // namespace sparsesync
