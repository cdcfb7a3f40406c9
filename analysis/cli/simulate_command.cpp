// `sparsesync simulate`: simulates a model's training step for each schedule and number of workers.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "analysis/simulate/training_simulator.h"
#include "engine/planner/schedule/model_costs.h"
#include "engine/planner/schedule/timeline.h"
#include "engine/support/json.h"
#include "kernels/base/error.h"
#include "kernels/base/printable.h"
#include "sparsesync/schedule.h"

namespace sparsesync {
namespace {

struct SimulateArguments {
  std::string model;
  std::string workers = "4..2048";
  std::string schedules = "all";
  std::string scheme = "auto";
  NetworkArguments network;
  std::string affine;
  int workers_per_node = 0;
  std::int64_t bucket_bytes = -1;  // not given
  double stragglers = 0;
  std::int64_t seed = 1;
  bool announce = false;
  std::string wire = "f32";
  double coarse_grained = -1;  // not given
  std::int64_t chunk = CrossingChunks{}.elements;
  std::string timeline;
  std::string json;
};

std::vector<const SchedulePolicy*> policies_from(const std::string& text) {
  std::vector<const SchedulePolicy*> policies;
  if (text == "all") {
    for (const SchedulePolicy& each : schedule_policies()) policies.push_back(&each);
    return policies;
  }
  for (const std::string& name : between_commas("--schedules", text)) {
    policies.push_back(&schedule_policy_named(name));
  }
  return policies;
}

AffineAllReduce affine_from(const std::string& text) {
  const std::vector<std::string> parts = between_commas("--affine", text);
  if (parts.size() != 2) {
    throw InputError(fmt::format(
        "--affine {}: give two numbers, seconds and seconds per byte, such as 9.7e-5,3.1e-10",
        text));
  }
  constexpr double kMost = 1e6;
  return {parse_number("--affine", parts[0], 0, kMost),
          parse_number("--affine", parts[1], 0, kMost)};
}

CrossingOptions crossing_from(const SimulateArguments& given) {
  CrossingOptions options;
  options.scheme = given.scheme;
  options.announce = given.announce;
  options.wire = dtype_named(given.wire);
  if (given.coarse_grained == 0) {
    throw InputError("--coarse-grained 0: give a share above 0 and up to 1");
  }
  if (given.coarse_grained > 0) options.chunks = CrossingChunks{given.coarse_grained, given.chunk};
  if (!given.affine.empty()) {
    if (given.network.is_given() || given.workers_per_node > 0) {
      throw InputError(
          "--affine replaces --rate, --latency, --network and --workers-per-node: remove either "
          "--affine or these");
    }
    options.affine = affine_from(given.affine);
    return options;
  }
  const GivenNetwork found = network_from("simulate", given.network);
  options.network = found.network;
  if (given.workers_per_node > 0) {
    if (!found.measured || !found.measured->intra || !found.measured->inter) {
      throw InputError(
          "--workers-per-node needs --network with links inside and between nodes: write one with "
          "'mpirun ... sparsesync calibrate' on two or more nodes");
    }
    options.nodes = NodeNetwork{given.workers_per_node, found.measured->network(false)};
  }
  return options;
}

/// Describes how gradients are compressed; empty if they are not.
std::string compression_text(const CrossingOptions& options) {
  std::string text;
  if (options.wire != DType::f32)
    text += fmt::format("; values are sent as {}", name_of(options.wire));
  if (options.chunks) {
    text += fmt::format("; {:g} of all chunks of {} elements are sent", options.chunks->share,
                        format_count(options.chunks->elements));
  }
  return text;
}

std::string crossing_text(const CrossingOptions& options) {
  if (options.affine) {
    return fmt::format("an all-reduce takes {} + {:.3g} ns per byte",
                       format_seconds(options.affine->start_s), options.affine->s_per_byte * 1e9);
  }
  return fmt::format("{} per direction, latency {}", format_rate(options.network.rate_bps),
                     format_seconds(options.network.latency_s));
}

/// The simulated step of one schedule with one number of workers.
struct SimulationResult {
  int workers = 1;
  std::string schedule;
  SimulatedStep step;
  std::vector<std::string> schemes;  // [bucket]
};

/// All results of a model.
struct Simulation {
  const Model& model;
  CrossingOptions crossing;
  std::vector<SimulationResult> results;
};

/// Returns the JSON of a simulation: "model", "network", "wire", "coarse_grained", "results" and
/// "provenance".
///
/// "network" is {"latency_s", "rate_bps", "affine": [A, B] or null}. "coarse_grained" is {"share",
/// "chunk"} or null. Each of the "results" is identified by "workers", "schedule" and "scheme". It
/// has "iteration_s", "compute_s", "communication_s", "exposed_s", "efficiency" and "messages".
/// "efficiency" is compute_s / iteration_s. "buckets" lists [first layer, last layer] of each
/// bucket, and "schemes" the scheme of each bucket.
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

/// Returns a table with a row for each schedule and a column for each number of workers.
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

/// Returns three tables with a row for each schedule and a column for each number of workers:
/// iteration times, exposed communication, and messages.
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

/// Returns a Chrome trace of the last steps of each result.
std::string timelines_of(const Simulation& simulation) {
  std::vector<std::string> layers;
  for (const ModelLayer& layer : simulation.model.layers) layers.push_back(layer.name);
  std::vector<NamedTimeline> timelines;
  for (const SimulationResult& each : simulation.results) {
    timelines.push_back({fmt::format("{}, {} workers", each.schedule, each.workers),
                         each.step.schedule, each.step.timeline});
  }
  return chrome_trace(layers, timelines);
}

void run_simulate(const SimulateArguments& given) {
  const std::vector<int> workers = workers_from(given.workers, 1);
  const std::vector<const SchedulePolicy*> policies = policies_from(given.schedules);
  const CrossingOptions crossing = crossing_from(given);
  const Model model = read_model(given.model);
  JsonOutput json(given.json);
  std::optional<JsonOutput> timeline;
  if (!given.timeline.empty()) timeline.emplace(given.timeline);
  Stragglers stragglers;
  stragglers.deviation = given.stragglers;
  stragglers.seed = static_cast<std::uint64_t>(given.seed);
  if (given.bucket_bytes == 0) throw InputError("--bucket 0: give a size of 1 byte or more");
  const std::optional<double> full_bytes =
      given.bucket_bytes > 0 ? std::optional<double>(given.bucket_bytes) : std::nullopt;
  Simulation simulation{model, crossing, {}};
  Progress progress("simulating");
  const std::int64_t total = std::ssize(workers) * std::ssize(policies);
  for (const int size : workers) {
    const ModelCosts costs(model, size, crossing);
    for (const SchedulePolicy* policy : policies) {
      simulation.results.push_back(
          {size,
           std::string(policy->name),
           simulate(costs, static_cast<std::size_t>(size), *policy, full_bytes, stragglers),
           {}});
      for (const LayerRange range : simulation.results.back().step.schedule.buckets) {
        simulation.results.back().schemes.push_back(costs.scheme(range));
      }
      progress.update(std::ssize(simulation.results), total);
    }
  }
  progress.erase();
  print(json.tables(), fmt::format("{}, {} layers; {}{}\n\n{}", shortened(model.name),
                                   model.layers.size(), crossing_text(crossing),
                                   compression_text(crossing), simulation_table(simulation)));
  if (timeline) timeline->write(timelines_of(simulation));
  Json provenance = provenance_json();
  provenance["model"] = given.model;
  if (!given.network.file.empty()) provenance["network"] = given.network.file;
  provenance["seed"] = given.seed;
  json.write(simulation_json(simulation, provenance));
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  auto given = std::make_shared<SimulateArguments>();
  CLI::App& command = *app.add_subcommand(
      "simulate", "Simulate a model's training step for each schedule and number of workers");
  command.add_option("model", given->model, "Model file")->type_name("MODEL.json")->required();
  command
      .add_option("--workers", given->workers,
                  "Numbers of workers: FIRST..LAST for these two and the powers of two between "
                  "them, or a comma-separated list; 1 to 65536 (default: 4..2048)")
      ->type_name("4..2048|8,12,...");
  command
      .add_option("--schedules", given->schedules,
                  "Schedules to simulate, comma-separated: sequential, wfbp, merge_all, mg_wfbp, "
                  "mg_wfbp_exact, lazy, dear, auto (default: all)")
      ->type_name("all|NAME,...");
  command
      .add_option(
          "--scheme", given->scheme,
          "Scheme for sparse gradients. Dense gradients use it too if it is a dense scheme, "
          "and dense_ring otherwise (default: auto)")
      ->type_name("auto|NAME");
  add_network(command, given->network);
  command
      .add_option("--affine", given->affine,
                  "Cost of an all-reduce of m bytes, A + B * m seconds; replaces the options of "
                  "the network")
      ->type_name("A,B");
  add_count(command, "--workers-per-node", given->workers_per_node, 1, 65'536,
            "Workers per node; needs a --network file with links inside and between nodes");
  add_bytes(command, "--bucket", given->bucket_bytes,
            "Size at which a bucket of the schedules lazy and dear is full (default: the fastest "
            "bucketing)");
  add_number(command, "--stragglers", given->stragglers, 0, 10,
             "Standard deviation of the workers' compute times in a step, relative to their mean "
             "(default: 0)");
  add_count(command, "--seed", given->seed, 0, std::int64_t{1} << 53U,
            "Seed of --stragglers (default: 1)");
  command.add_flag("--announce", given->announce,
                   "Index prefetch: exchange row indices of sparse gradients during the forward "
                   "pass");
  command.add_option("--wire", given->wire, "Type in which values are sent (default: f32)")
      ->type_name("f32|bf16|f16");
  CLI::Option* const share =
      add_number(command, "--coarse-grained", given->coarse_grained, 0, 1,
                 "Share of the chunks of dense gradients that is sent, beside the norms of all "
                 "chunks (default: whole gradients are sent)");
  add_count(command, "--chunk", given->chunk, 1, std::int64_t{1} << 40U,
            "Elements per chunk of --coarse-grained (default: 32768)")
      ->needs(share);
  command
      .add_option("--timeline", given->timeline,
                  "Write a Chrome trace of the last simulated steps, for ui.perfetto.dev")
      ->type_name("FILE");
  add_json(command, given->json);
  command.footer(
      "Tables, with a column per number of workers: iteration is the time of a training step.\n"
      "Exposed communication is the part that is not hidden behind computation, \"of\" all\n"
      "communication. Messages are those that the busiest worker sends per step.\n"
      "docs/tools/simulate.md describes the model file.\n"
      "Examples:\n"
      "  sparsesync simulate models/resnet50.json --workers 4..2048 --rate 10gbit --latency 20us\n"
      "  sparsesync simulate models/lstm.json --workers 8 --network NETWORK.json --schedules "
      "wfbp,dear --timeline steps.json\n"
      "  sparsesync simulate models/alexnet.json --rate 56gbit --schedules lazy --wire f16 "
      "--coarse-grained 0.1");
  command.callback([given] { run_simulate(*given); });
}

}  // namespace sparsesync
