// Simulation of a model's training step, for any schedule and number of workers. The model comes
// from MODEL.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/schedule/model_costs.h"
#include "engine/planner/schedule/policies.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "sparsesync/schedule.h"

namespace sparsesync {

/// Random variation of the workers' speed. In each step, the seconds of a worker's passes are
/// multiplied by a random factor, log-normal with mean 1.
struct Stragglers {
  double deviation = 0;  // standard deviation of the factor; 0: all workers are equal
  std::uint64_t seed = 1;
  int steps = 20;  // number of steps to average
};

/// A simulated step: the mean over workers, and over steps after a warm-up.
struct SimulatedStep {
  Schedule schedule = {};
  double iteration_s = 0;
  double compute_s = 0;        // seconds of a worker's passes
  double communication_s = 0;  // seconds in which the link is in use
  double exposed_s = 0;        // seconds that a worker waits: iteration_s - compute_s
  double messages = 0;         // messages that the busiest worker sends
  /// Timelines of worker 0 and the link in the last simulated steps. There are several, because the
  /// gathers of one step may run during the forward pass of the next.
  std::vector<StepTimeline> timeline = {};

  /// Returns the share of its time in which a worker computes; 1 if the step takes no time.
  double efficiency() const { return iteration_s > 0 ? compute_s / iteration_s : 1; }
};

/// Simulates a schedule, step after step, on StepClock.
/// @param full_bytes  ScheduleQuestion::full_bytes
SimulatedStep simulate(const ModelCosts& costs, std::size_t workers, const SchedulePolicy& policy,
                       std::optional<double> full_bytes = std::nullopt,
                       const Stragglers& stragglers = {});

/// Returns the text of a model file: "name", "layers" and "provenance".
///
/// A layer has "name", "forward_s", "backward_s", and either "bytes" (dense gradient) or "sparse":
/// {"rows", "width", "nnz", "densification": {"2": ..., ...}}.
std::string model_json(const Model& model,
                       const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads a model file. Unknown keys are ignored.
/// @throws InputError if the file cannot be read, or a key is missing or has an invalid value: the
///                    message names the key
Model read_model(const std::filesystem::path& path);

}  // namespace sparsesync
