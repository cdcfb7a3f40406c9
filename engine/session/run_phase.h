// Runs one phase of one bucket, all its rounds: with the refusals that a step can take back.
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

/// How a phase ended on this worker.
struct PhaseOutcome {
  std::exception_ptr error;  // for who waits for the phase; null where it went well
  bool fatal = false;        // whether it ends the session
  bool refused = false;      // just now, as all workers know
  bool is_final = true;      // whether the phase is never run again
};

/// What a phase runs on: the session's.
struct PhaseGround {
  Transport& transport;
  ControlChannel& control;
  const Context& context;
  Clock::duration deadline;  // of each wait
  ExchangeWorkspace& workspace;
  /// Whether what the caller gave for the step's phases before this one is as it was; it then stays
  /// so until this phase is over.
  FunctionView<bool()> hold_gradients;
};

/// Runs the phase and lets the bucket, and its choice, see how it went. Synchronizes the stream.
/// @param choice     that of a bucket of `auto`; null for others
/// @param gradients  of the step, or the rows that it announces; none for a gather
/// @param source     gives the gradients of a reduce in their place; null: they are there
/// @throws what ends the session
PhaseOutcome run_phase(const PhaseGround& ground, RegisteredBucket& bucket, AutoScheme* choice,
                       Phase phase, std::span<const Gradient> gradients, GradientSource* source);

}  // namespace sparsesync
