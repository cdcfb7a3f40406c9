#include "analysis/cli/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analysis/cli/table.h"
#include "analysis/cli/units.h"

namespace sparsesync {

std::string simulation_json(const Simulation& simulation, const Json& provenance) {
  Json results = Json::array();
  for (const SimulationResult& result : simulation.results) {
    const SimulatedStep& step = result.step;
    Json buckets = Json::array();
    for (const LayerRange range : step.schedule.buckets) {
      buckets.push_back({range.first, range.last});
    }
    results.push_back({{"workers", result.workers},
                       {"schedule", result.schedule},
                       {"scheme", simulation.crossing.scheme},
                       {"iteration_s", step.iteration_s},
                       {"compute_s", step.compute_s},
                       {"communication_s", step.communication_s},
                       {"exposed_s", step.exposed_s},
                       {"efficiency", step.efficiency()},
                       {"messages", step.messages},
                       {"buckets", buckets},
                       {"schemes", result.schemes}});
  }
  const auto& affine = simulation.crossing.affine;
  const auto& chunks = simulation.crossing.chunks;
  const Network& network = simulation.crossing.network;
  return json_text(
      {{"model", simulation.model.name},
       {"network",
        {{"latency_s", affine ? Json(nullptr) : Json(network.latency_s)},
         {"rate_bps", affine ? Json(nullptr) : Json(network.rate_bps)},
         {"affine", affine ? Json{affine->start_s, affine->s_per_byte} : Json(nullptr)}}},
       {"wire", name_of(simulation.crossing.wire)},
       {"coarse_grained",
        chunks ? Json{{"share", chunks->share}, {"chunk", chunks->elements}} : Json(nullptr)},
       {"results", results},
       {"provenance", provenance}});
}

namespace {

/// A row for each schedule, a column for each number of workers.
template <typename Cell>
std::string table_of(const Simulation& simulation, const std::string& title, Cell&& cell) {
  std::vector<Table::Column> columns{{title, Table::Align::left}};
  std::vector<std::string> schedules;
  for (const SimulationResult& each : simulation.results) {
    if (each.workers == simulation.results.front().workers) schedules.push_back(each.schedule);
    if (each.schedule == simulation.results.front().schedule) {
      columns.push_back({format_count(each.workers) + " "});
    }
  }
  Table table(std::move(columns));
  for (const std::string& schedule : schedules) {
    std::vector<std::string> cells{schedule};
    for (const SimulationResult& each : simulation.results) {
      if (each.schedule == schedule) cells.push_back(cell(each));
    }
    table.add_row(std::move(cells));
  }
  return table.text();
}

}  // namespace

std::string simulation_table(const Simulation& simulation) {
  std::map<int, double> least;
  for (const SimulationResult& each : simulation.results) {
    const auto place = least.try_emplace(each.workers, each.step.iteration_s).first;
    place->second = std::min(place->second, each.step.iteration_s);
  }
  return table_of(simulation, "iteration (*: fewest), workers",
                  [&](const SimulationResult& each) {
                    const bool is_least = each.step.iteration_s <= least.at(each.workers);
                    return format_seconds(each.step.iteration_s) + (is_least ? "*" : " ");
                  }) +
         "\n" +
         table_of(simulation, "exposed of communication, workers",
                  [](const SimulationResult& each) {
                    return fmt::format("{} of {} ", format_seconds(each.step.exposed_s),
                                       format_seconds(each.step.communication_s));
                  }) +
         "\n" + table_of(simulation, "messages, workers", [](const SimulationResult& each) {
           return format_count(static_cast<std::int64_t>(each.step.messages)) + " ";
         });
}

}  // namespace sparsesync
