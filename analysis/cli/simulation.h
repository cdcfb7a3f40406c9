// What a simulation found, as JSON and as a table.
#pragma once

#include <string>
#include <vector>

#include "analysis/simulate/training_simulator.h"
#include "engine/planner/schedule/model_costs.h"
#include "engine/support/json.h"

namespace sparsesync {

/// A step among some workers by one schedule.
struct SimulationResult {
  int workers = 1;
  std::string schedule;
  SimulatedStep step;
  std::vector<std::string> schemes;  // [bucket]
};

/// All that was simulated of a model.
struct Simulation {
  const Model& model;
  CrossingOptions crossing;
  std::vector<SimulationResult> results;
};

/// {"model", "network": {"latency_s", "rate_bps", "affine": [A, B] or null}, "wire",
/// "coarse_grained": {"share", "chunk"} or null, "results":
/// [{"workers", "schedule", "scheme", "iteration_s", "compute_s", "communication_s", "exposed_s",
/// "efficiency": compute_s over iteration_s, "messages", "buckets": [[first layer, last layer],
/// ...], "schemes": [of each bucket]}], "provenance"}.
std::string simulation_json(const Simulation& simulation, const Json& provenance);

/// A row for each schedule, a column for each number of workers: iteration times, and what of them
/// is exposed.
std::string simulation_table(const Simulation& simulation);

}  // namespace sparsesync
