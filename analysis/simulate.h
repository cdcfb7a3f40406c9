// The simulator: what a training step of a model takes on the virtual clock, by every schedule and
// among any number of workers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/model_costs.h"
#include "analysis/schedule.h"
#include "analysis/step_clock.h"

namespace sparsesync {

/// Workers that are not alike: in each step each one's passes take what the layers' seconds say
/// times a number of its own, log-normal with mean 1.
struct Stragglers {
  double deviation = 0;  // of that number, standard; 0: all are alike
  std::uint64_t seed = 1;
  int steps = 20;  // that a mean is made of
};

/// A step as it was simulated, mean over steps once they are alike, and over workers.
struct SimulatedStep {
  Schedule schedule;
  double iteration_s = 0;
  double compute_s = 0;        // of a worker's passes
  double communication_s = 0;  // that something crosses
  double exposed_s = 0;        // that a worker waits: iteration_s without compute_s
  double messages = 0;         // that the busiest worker sends
  StepTimeline timeline;       // of worker 0 in the last step, and of what crosses after its backward
};

/// Simulates a schedule, step after step, on StepClock.
/// @param full_bytes  as ScheduleQuestion has it
SimulatedStep simulate(const ModelCosts& costs, std::size_t workers, const SchedulePolicy& policy,
                       std::optional<double> full_bytes = std::nullopt,
                       const Stragglers& stragglers = {});

}  // namespace sparsesync
