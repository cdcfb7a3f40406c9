// Runs one phase of one bucket, all its rounds: with the refusals that a step can take back.
#pragma once

#include <cstdint>
#include <exception>
#include <span>

#include "engine/registered_bucket.h"
#include "schemes/exchange.h"

namespace sparsesync {

/// How a phase ended on this worker.
struct PhaseOutcome {
  std::exception_ptr error;  // for who waits for the phase; null where it went well
  bool fatal = false;        // whether it ends the session
  std::int64_t index_bytes_sent = 0;
};

/// What a phase runs on: the session's.
struct PhaseGround {
  Transport& transport;
  const Context& context;
  Clock::duration timeout;  // of each wait
  ExchangeWorkspace& workspace;
};

/// @param channel    the bucket's
/// @param gradients  of the step, or the rows that it announces; none for a gather
/// @throws what is no refusal: it ends the session
PhaseOutcome run_phase(const PhaseGround& ground, RegisteredBucket& bucket, std::uint32_t channel,
                       Phase phase, std::span<const Gradient> gradients);

}  // namespace sparsesync
