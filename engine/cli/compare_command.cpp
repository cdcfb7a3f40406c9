// `sparsesync compare`: what each scheme costs on a trace, as a table and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/network_file.h"
#include "analysis/table.h"
#include "engine/cli/command.h"
#include "engine/cli/progress.h"
#include "engine/cli/units.h"
#include "engine/compare.h"
#include "engine/provenance.h"

namespace sparsesync {
namespace {

using Json = nlohmann::ordered_json;

struct CompareArguments {
  std::string trace;
  std::string schemes = "all";
  std::string transport = "local";
  std::string clock = "real";
  double rate_bps = 0;
  double latency_s = 0;
  int repeat = 5;
  std::int64_t memory = 0;
  double deadline_s = 60;
  std::int64_t chunk = 0;
  int window = 0;
  std::string pattern;
  std::string wire;
  bool announce = false;
  bool explain = false;
  SchemeOptions options;
  std::vector<SchemeOption> scheme_options;  // that were given
  std::string network;
  std::string result;
  bool force = false;
  std::string json;
};

/// Names between commas; none of them empty.
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names{""};
  for (const char c : text) {
    if (c == ',') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  for (const std::string& name : names) {
    if (name.empty()) {
      throw InputError(fmt::format(
          "--schemes '{}': a name is missing: write all, or names with a comma between them",
          text));
    }
  }
  return names;
}

CompareOptions options_from(const CompareArguments& given) {
  if (given.transport != "local" && given.transport != "mpi") {
    throw InputError(
        fmt::format("--transport '{}': this build has local and mpi", given.transport));
  }
  const bool shaped = given.rate_bps > 0 || given.latency_s > 0;
  if (given.transport == "mpi" && shaped) {
    throw InputError(
        "--rate and --latency shape local links alone: leave them out, or use --transport local");
  }
  if (given.transport == "local" && (given.chunk || given.window)) {
    throw InputError("--chunk and --window are for --transport mpi alone: leave them out");
  }
  if (given.clock != "real" && given.clock != "virtual") {
    throw InputError(fmt::format("--clock '{}': this build has real and virtual", given.clock));
  }
  if (given.transport == "mpi" && given.clock == "virtual") {
    throw InputError(
        "--clock virtual records the workers of one process: leave --transport mpi out, or use "
        "--clock real");
  }
  CompareOptions options;
  for (const std::string& name : split_names(given.schemes)) {
    if (name == "all") {
      options.schemes.clear();
      break;
    }
    options.schemes.push_back(name);
  }
  options.scheme_options = given.options;
  options.given = given.scheme_options;
  if (!given.pattern.empty()) options.scheme_options.pattern = communication_named(given.pattern);
  if (!given.wire.empty()) options.scheme_options.wire = dtype_named(given.wire);
  options.announce = given.announce;
  if (given.rate_bps > 0) options.link.rate_bps = given.rate_bps;
  options.link.latency_s = given.latency_s;
  if (given.clock == "virtual") options.clock = CompareClock::replayed;
  options.repeat = given.repeat;
  if (given.memory > 0) options.memory = given.memory;
  options.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(given.deadline_s * 1000));
  if (!given.result.empty()) options.result = given.result;
  options.force = given.force;
  return options;
}

/// Reads --network: what predictions are made from and, on the virtual clock, the link to replay
/// on. What the command line says of the link goes before what the file says.
/// @param between_nodes  whether messages cross between machines
void take_network(const CompareArguments& given, bool between_nodes, CompareOptions& options) {
  if (given.network.empty()) return;
  Network network = read_network(given.network).network(between_nodes);
  if (given.rate_bps > 0) {
    network.rate_bps = given.rate_bps;
    network.latency_s = given.latency_s;
  } else {
    if (given.latency_s > 0) network.latency_s = given.latency_s;
    if (options.clock == CompareClock::replayed) {
      options.link = {network.rate_bps, network.latency_s};
    }
  }
  options.network = network;
}

Json tensors_json(const std::vector<TensorSpec>& tensors) {
  Json json = Json::array();
  for (const TensorSpec& tensor : tensors) {
    json.push_back({{"name", tensor.name},
                    {"rows", tensor.rows},
                    {"width", tensor.width},
                    {"dtype", name_of(tensor.dtype)}});
  }
  return json;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json scheme_json(const SchemeFigures& figures) {
  if (figures.skipped) return {{"name", figures.name}, {"skipped", *figures.skipped}};
  Json choices = Json::array();
  for (const SpaceChoice& choice : figures.choices) {
    choices.push_back(
        {{"index_code", choice.index_code.empty() ? Json(nullptr) : Json(choice.index_code)},
         {"row_groups", or_null(choice.row_groups)},
         {"column_slices", or_null(choice.column_slices)}});
  }
  const bool known = figures.imbalance.has_value();
  return {{"name", figures.name},
          {"bytes_busiest", figures.bytes_busiest()},
          {"bytes_sent_max", figures.bytes_sent_max},
          {"bytes_received_max", figures.bytes_received_max},
          {"bytes_total", figures.bytes_total},
          {"bytes_index", figures.bytes_index},
          {"bytes_values", figures.bytes_values},
          {"messages", figures.messages},
          {"non_finite_values", figures.non_finite},
          {"seconds_median", figures.seconds_median},
          {"seconds_min", figures.seconds_min},
          {"seconds_predicted", or_null(figures.seconds_predicted)},
          {"push_imbalance", known ? Json(figures.imbalance->push) : Json(nullptr)},
          {"pull_imbalance", known ? Json(figures.imbalance->pull) : Json(nullptr)},
          {"memory_bytes", figures.memory_bytes},
          {"correct", figures.correct},
          {"chosen", figures.chosen.empty() ? Json(nullptr) : Json(figures.chosen)},
          {"tensors", choices}};
}

std::string as_json(const CompareReport& report, const CompareArguments& given,
                    std::uint64_t seed) {
  Json schemes = Json::array();
  for (const SchemeFigures& figures : report.schemes) schemes.push_back(scheme_json(figures));
  Json origin;
  for (const auto& [name, value] : provenance()) origin[name] = value;
  origin["trace"] = given.trace;
  if (!given.network.empty()) origin["network"] = given.network;
  origin["seed"] = seed;
  const Json json{
      {"tensors", tensors_json(report.tensors)},
      {"workers", report.workers},
      {"transport", given.transport},
      {"clock", given.clock},
      {"wire", given.wire.empty() ? Json(nullptr) : Json(given.wire)},
      {"announce", given.announce},
      {"network",
       {{"rate_bps", or_null(report.link.rate_bps)}, {"latency_s", report.link.latency_s}}},
      {"steps", report.steps},
      {"repeat", report.repeat},
      {"partitioned_ideal_bytes", report.partitioned_ideal_bytes},
      {"lower_bound_bytes", report.lower_bound_bytes},
      {"provenance", origin},
      {"schemes", schemes}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string needs_text(const std::vector<MemoryNeed>& needs, int workers) {
  std::string text = fmt::format("memory needed (workspace, {} workers on this machine):", workers);
  for (const MemoryNeed& need : needs) {
    text += fmt::format(" {} {}{}", need.scheme, format_bytes(need.bytes_of_a_worker * workers),
                        need.skipped ? " (skipped)" : "");
    text += &need == &needs.back() ? "\n" : ",";
  }
  return text;
}

/// "×1.23"; "-" where there is nothing to divide by.
std::string ratio(double a, double b, int digits) {
  return b > 0 ? fmt::format("{:.{}f}", a / b, digits) : "-";
}

std::string table_of(const CompareReport& report) {
  std::vector<const SchemeFigures*> ran;
  std::string skipped;
  for (const SchemeFigures& figures : report.schemes) {
    if (figures.skipped) {
      skipped += fmt::format("{} skipped: {}\n", figures.name, *figures.skipped);
    } else {
      ran.push_back(&figures);
    }
  }
  std::sort(ran.begin(), ran.end(), [](const SchemeFigures* a, const SchemeFigures* b) {
    return a->seconds_median < b->seconds_median;
  });
  double dense_seconds = 0;
  for (const SchemeFigures* figures : ran) {
    if (figures->name == "dense_ring") dense_seconds = figures->seconds_median;
  }
  Table table({{"", Table::Align::left},
               {"scheme", Table::Align::left},
               {"busiest worker"},
               {"× ideal"},
               {"seconds"},
               {"× faster than dense"},
               {"imbalance"},
               {"memory"},
               {"correct", Table::Align::left}});
  // The winner is the fastest one that is right.
  const auto winner = std::find_if(ran.begin(), ran.end(),
                                   [](const SchemeFigures* figures) { return figures->correct; });
  for (auto figures = ran.begin(); figures != ran.end(); ++figures) {
    const SchemeFigures& of = **figures;
    table.add_row({figures == winner ? "*" : "",
                   of.chosen.empty() ? of.name : fmt::format("{}: {}", of.name, of.chosen),
                   format_bytes(of.bytes_busiest()),
                   ratio(of.bytes_busiest(), report.partitioned_ideal_bytes, 3),
                   format_seconds(of.seconds_median),
                   dense_seconds > 0 ? ratio(dense_seconds, of.seconds_median, 2) : "-",
                   of.imbalance
                       ? fmt::format("{:.3f}", std::max(of.imbalance->push, of.imbalance->pull))
                       : "-",
                   format_bytes(static_cast<double>(of.memory_bytes)), of.correct ? "yes" : "NO"});
  }
  std::string overflowed;
  for (const SchemeFigures* figures : ran) {
    if (figures->non_finite == 0) continue;
    overflowed +=
        fmt::format("{}: {} values of a step's sums are not finite: too large for --wire?\n",
                    figures->name, figures->non_finite);
  }
  return table.text() + overflowed + skipped;
}

std::string heading(const CompareReport& report, const CompareArguments& given) {
  double dense = 0;
  for (const TensorSpec& tensor : report.tensors) {
    dense += static_cast<double>(tensor.rows) *
             static_cast<double>(tensor.width * element_bytes(tensor.dtype));
  }
  const std::string link =
      given.transport == "mpi"
          ? "as it is"
          : fmt::format("{}, latency {}",
                        report.link.rate_bps ? format_rate(*report.link.rate_bps) : "unshaped",
                        format_seconds(report.link.latency_s));
  return fmt::format(
      "{} workers over {} ({}, {} clock), {} step{}, median of {}\n"
      "dense gradient {}, partitioned ideal {}, lower bound {} a step for the busiest worker\n\n",
      report.workers, given.transport, link, given.clock, report.steps,
      report.steps == 1 ? "" : "s", report.repeat, format_bytes(dense),
      format_bytes(report.partitioned_ideal_bytes), format_bytes(report.lower_bound_bytes));
}

/// @throws InputError if nothing is known of the network
std::string explanation(const Comparison& comparison) {
  const std::optional<Network> network = comparison.network();
  if (!network) {
    throw InputError(
        "--explain: nothing is known of the network: give --network (from calibrate), or a --rate "
        "where links are local");
  }
  Table table({{"expected", Table::Align::left},
               {"seconds"},
               {"busiest worker"},
               {"memory"},
               {"", Table::Align::left}});
  for (const Prediction& prediction : comparison.predictions(*network)) {
    table.add_row({prediction.way.label(), format_seconds(prediction.seconds),
                   format_bytes(prediction.bytes_busiest), format_bytes(prediction.memory_bytes),
                   prediction.ruled_out});
  }
  return table.text() + "\n";
}

MpiChunks chunks_from(const CompareArguments& given) {
  MpiChunks chunks;
  if (given.chunk > 0) chunks.bytes = given.chunk;
  if (given.window > 0) chunks.window = given.window;
  return chunks;
}

void compare(const CompareArguments& given) {
  CompareOptions options = options_from(given);
  std::unique_ptr<Workers> workers;
  if (given.transport == "mpi") {
    workers = std::make_unique<MpiWorkers>(options.deadline, chunks_from(given));
  }
  std::unique_ptr<JsonOutput> json;
  std::unique_ptr<Progress> progress;
  std::optional<Comparison> comparison;
  std::string explained;
  const auto prepare = [&] {
    take_network(given, !workers || workers->on_this_machine() < workers->size(), options);
    Trace trace = Trace::open(given.trace);
    if (!workers) {
      // On the virtual clock the link is the replay's.
      const bool waits = options.clock == CompareClock::real;
      workers =
          std::make_unique<LocalWorkers>(trace.header().workers, waits ? options.link : LocalLink{},
                                         options.scheme_options.workers_per_node);
    }
    if (workers->leads()) {
      json = std::make_unique<JsonOutput>(given.json);
      progress = std::make_unique<Progress>("preparing");
      options.progress = [&](const std::string& scheme, std::int64_t done, std::int64_t total) {
        progress->set_label(scheme);
        progress->update(done, total);
      };
    }
    comparison.emplace(*workers, std::move(trace), std::move(options));
    // Before anything is printed: it is refused where nothing is known of the network.
    if (given.explain) explained = explanation(*comparison);
  };
  if (workers) {
    workers->together(prepare);
  } else {
    prepare();
  }
  ControlChannel::Statement statement = comparison->statement();
  statement.emplace_back("--chunk", fmt::format("{}", given.chunk));
  statement.emplace_back("--window", fmt::format("{}", given.window));
  workers->agree("compare", statement);
  if (json) {
    print(json->tables(),
          needs_text(comparison->memory_needs(), workers->on_this_machine()) + explained);
  }
  const CompareReport report = comparison->run();
  if (!workers->leads()) return;
  progress->erase();
  print(json->tables(), heading(report, given) + table_of(report));
  json->write(as_json(report, given, comparison->seed()));
  for (const SchemeFigures& figures : report.schemes) {
    if (!figures.skipped && !figures.correct) {
      throw Error(
          fmt::format("scheme {} is not correct: {}", figures.name, figures.first_difference));
    }
  }
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto given = std::make_shared<CompareArguments>();
  CLI::App& command = *app.add_subcommand(
      "compare", "Move a trace's gradients by each scheme: bytes, seconds, correctness");
  command.add_option("trace", given->trace, "A trace's folder")->type_name("TRACE")->required();
  command
      .add_option("--schemes", given->schemes,
                  "All, or names with a comma between them: those of info --schemes, and auto, "
                  "which takes the one that is expected to be fastest (all if not given)")
      ->type_name("all|a,b,c");
  command
      .add_option(
          "--transport", given->transport,
          "How the workers are connected: local (threads of this process) or mpi (processes "
          "of an mpirun)")
      ->type_name("local|mpi");
  add_rate(command, "--rate", given->rate_bps,
           "Of each worker's link, in each direction, such as 200mbit (unshaped if not given)");
  add_seconds(command, "--latency", given->latency_s,
              "Of each worker's link, such as 50us (0 if not given)");
  command
      .add_option("--clock", given->clock,
                  "What time is: real, or virtual, where each worker's computing is recorded and "
                  "replayed on the link as if it had a machine of its own (over local alone)")
      ->type_name("real|virtual");
  command
      .add_option("--network", given->network,
                  "What calibrate has measured: seconds are predicted from it, and on the virtual "
                  "clock it is the link where --rate is not given")
      ->type_name("NETWORK.json");
  add_count(command, "--repeat", given->repeat, 1, 1'000'000,
            "Times that all steps are run; the median counts (5 if not given)");
  command
      .add_option(
          "--pattern", given->pattern,
          "How the messages of all_gather go, and the sums of split_all_gather and dynamic_split "
          "(ring if not given)")
      ->type_name("ring|hierarchy|point_to_point");
  command
      .add_option("--wire", given->wire,
                  "What values cross as, no wider than their dtype (their dtype if not given)")
      ->type_name("f32|bf16|f16");
  command.add_flag("--announce", given->announce,
                   "Announce the rows of a step before its clock starts, to schemes that use them "
                   "(balanced, owned); their bytes are counted");
  command.add_flag("--explain", given->explain,
                   "Print what each scheme is expected to take, best first: what auto goes by "
                   "(needs --rate, --network or --clock virtual)");
  add_count(command, "--block", given->options.block, 1, 1 << 20,
            "Elements of a block of block_ps (256 if not given)");
  add_count(command, "--workers-per-node", given->options.workers_per_node, 1, 1 << 20,
            "The workers of a node, for two_level (as the transport tells if not given)");
  command
      .add_option("--between-nodes", given->options.between_nodes,
                  "The scheme between nodes, for two_level (balanced if not given)")
      ->type_name("NAME");
  add_bytes(command, "--memory", given->memory,
            "Workspace of each worker at most, such as 2GiB (what the machine has, if not given)");
  add_seconds(command, "--deadline", given->deadline_s,
              "Of each wait for another worker (60 s if not given)");
  add_bytes(command, "--chunk", given->chunk,
            "Over mpi: what messages are cut into (16KiB if not given)");
  add_count(command, "--window", given->window, 1, 65'536,
            "Over mpi: chunks that a worker has under way at most (14 if not given)");
  command
      .add_option("--result", given->result,
                  "Write what every worker ended with: DIR/SCHEME/w0003.s0001.safetensors")
      ->type_name("DIR");
  command.add_flag("--force", given->force, "Replace a folder --result that is there");
  add_json(command, given->json);
  command.footer(
      "Bytes are what crosses the port in a step: payloads and headers between different workers.\n"
      "'correct' compares every element on every worker with a sum made from the trace's files.\n"
      "Example:\n"
      "  sparsesync compare TRACE --rate 200mbit --latency 50us --json compare.json\n"
      "  sparsesync compare TRACE --rate 25gbit --latency 10us --clock virtual\n"
      "  sparsesync compare TRACE --schemes auto --rate 25gbit --latency 10us --explain\n"
      "  mpirun -np 8 sparsesync compare TRACE --transport mpi");
  command.callback([given, &command] {
    for (const SchemeOption option : kSchemeOptions) {
      if (command.count(fmt::format("--{}", name_of(option))) > 0) {
        given->scheme_options.push_back(option);
      }
    }
    compare(*given);
  });
}

}  // namespace sparsesync
