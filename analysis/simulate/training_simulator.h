// The simulator: a training step of a model on the virtual clock, by every schedule and among any
// number of workers. The model comes from MODEL.json.
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

/// Workers that are not alike: in each step each one's passes take what the layers' seconds say
/// times a number of its own, log-normal with mean 1.
struct Stragglers {
  double deviation = 0;  // of that number, standard; 0: all are alike
  std::uint64_t seed = 1;
  int steps = 20;  // that a mean is made of
};

/// A step as it was simulated, mean over steps once they are alike, and over workers.
struct SimulatedStep {
  Schedule schedule = {};
  double iteration_s = 0;
  double compute_s = 0;        // of a worker's passes
  double communication_s = 0;  // that something crosses
  double exposed_s = 0;        // that a worker waits: iteration_s without compute_s
  double messages = 0;         // that the busiest worker sends
  /// Of worker 0 and the link, the last steps that were simulated: gathers of one may go on under
  /// the forward pass of the next.
  std::vector<StepTimeline> timeline = {};

  /// The share of its time that a worker computes; 1 where it does nothing at all.
  double efficiency() const { return iteration_s > 0 ? compute_s / iteration_s : 1; }
};

/// Simulates a schedule, step after step, on StepClock.
/// @param full_bytes  as ScheduleQuestion has it
SimulatedStep simulate(const ModelCosts& costs, std::size_t workers, const SchedulePolicy& policy,
                       std::optional<double> full_bytes = std::nullopt,
                       const Stragglers& stragglers = {});

/// The text of the file: {"name", "layers": [{"name", "forward_s", "backward_s", "bytes"} or {...,
/// "sparse": {"rows", "width", "nnz", "densification": {"2": ..., ...}}}], "provenance": {...}}.
std::string model_json(const Model& model,
                       const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads such a file. What it says beyond the above is not looked at.
/// @throws InputError if the file cannot be read; if something is missing or makes no sense: the
///                    text names it
Model read_model(const std::filesystem::path& path);

}  // namespace sparsesync
