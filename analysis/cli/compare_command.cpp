// `sparsesync compare`: from its options to a comparison, and what that found to where it goes.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "analysis/compare/compare.h"
#include "analysis/launcher.h"
#include "schemes/registry.h"
#include "sparsesync/network_file.h"

namespace sparsesync {
namespace {

struct CompareArguments : TransportArguments {
  std::string trace;
  std::string schemes = "all";
  std::string clock = "real";
  std::int64_t memory = 0;  // 0: not given
  std::int64_t chunk = 0;   // 0: not given
  int window = 0;           // 0: not given
  std::string pattern;
  std::string wire;
  std::string device;
  bool explain = false;
  std::string network;
  std::string result;
  std::string json;
  CompareOptions options;  // what they are given as
};

/// cpu, cuda, or cuda:0 and so on.
std::optional<CompareOptions::Gpu> gpu_from(const std::string& device) {
  constexpr std::string_view kCuda = "cuda";
  if (device.empty() || device == "cpu") return std::nullopt;
  if (device == kCuda) return CompareOptions::Gpu{};
  int number = -1;
  if (device.starts_with("cuda:")) {
    const char* const begin = device.data() + kCuda.size() + 1;
    const char* const end = device.data() + device.size();
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error != std::errc() || rest != end) number = -1;
  }
  if (number < 0) {
    throw InputError(
        fmt::format("--device '{}': use cpu, cuda (a machine's GPUs in turn) or one "
                    "of them, such as cuda:0",
                    device));
  }
  return CompareOptions::Gpu{number};
}

CompareOptions options_from(const CompareArguments& given) {
  given.check();
  if (!given.over_mpi() && (given.chunk || given.window)) {
    throw InputError("--chunk and --window are for --transport mpi alone: leave them out");
  }
  if (given.clock != "real" && given.clock != "virtual") {
    throw InputError(fmt::format("--clock '{}': this build has real and virtual", given.clock));
  }
  if (!given.is_local() && given.clock == "virtual") {
    throw InputError(
        fmt::format("--clock virtual records the workers of one process: leave --transport {} out, "
                    "or use --clock real",
                    given.transport));
  }
  CompareOptions options = given.options;
  options.schemes = between_commas("--schemes", given.schemes);
  if (std::find(options.schemes.begin(), options.schemes.end(), "all") != options.schemes.end()) {
    options.schemes.clear();
  }
  if (!given.pattern.empty()) options.scheme_options.pattern = communication_named(given.pattern);
  if (!given.wire.empty()) options.scheme_options.wire = dtype_named(given.wire);
  options.link = given.link();
  options.nccl = given.transport == "nccl";
  options.gpu = gpu_from(options.nccl && given.device.empty() ? "cuda" : given.device);
  if (options.nccl && !options.gpu) {
    throw InputError("--transport nccl connects GPUs: leave --device cpu out");
  }
  if (options.gpu && given.clock == "virtual") {
    throw InputError(
        "--clock virtual records what processors do: leave --device out, or use --clock real");
  }
  if (given.clock == "virtual") options.clock = CompareClock::replayed;
  options.deadline = given.deadline();
  if (given.memory > 0) options.memory = given.memory;
  if (!given.result.empty()) options.result = given.result;
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

/// "-" where there is nothing to divide by.
std::string ratio(double a, double b, int digits) {
  return b > 0 ? fmt::format("{:.{}f}", a / b, digits) : "-";
}

/// One line: the workspace that each scheme will need.
/// @param workers  on this machine
std::string memory_needs_text(const std::vector<MemoryNeed>& needs, int workers) {
  std::string text = fmt::format("memory needed (workspace, {} workers on this machine):", workers);
  for (const MemoryNeed& need : needs) {
    text += fmt::format(" {} {}{}", need.scheme, format_bytes(need.bytes_of_a_worker * workers),
                        need.skipped ? " (skipped)" : "");
    text += &need == &needs.back() ? "\n" : ",";
  }
  return text;
}

/// The table of --explain.
/// @param predictions  in the order of its rows
std::string predictions_table(const std::vector<Prediction>& predictions) {
  Table table({{"expected", Table::Align::left},
               {"seconds"},
               {"busiest worker"},
               {"memory"},
               {"", Table::Align::left}});
  for (const Prediction& prediction : predictions) {
    table.add_row({prediction.variant.label(), format_seconds(prediction.seconds),
                   format_bytes(prediction.bytes_busiest), format_bytes(prediction.memory_bytes),
                   prediction.ruled_out});
  }
  return table.text() + "\n";
}

/// Returns the lines above the table: the run, and the lower bounds.
std::string compare_heading(const CompareReport& report, std::string_view transport) {
  double dense = 0;
  for (const TensorSpec& tensor : report.trace.tensors) {
    dense += static_cast<double>(tensor.dense_bytes());
  }
  const std::string link =
      transport == "mpi"
          ? "as it is"
          : fmt::format("{}, latency {}",
                        report.link.rate_bps ? format_rate(*report.link.rate_bps) : "unshaped",
                        format_seconds(report.link.latency_s));
  return fmt::format(
      "{} workers over {} ({}, {} clock), {} step{}, median of {}\n"
      "dense gradient {}, partitioned ideal {}, lower bound {} a step for the busiest worker\n\n",
      report.trace.workers, transport, link, name_of(report.clock), report.trace.steps,
      report.trace.steps == 1 ? "" : "s", report.repeat, format_bytes(dense),
      format_bytes(report.partitioned_ideal_bytes), format_bytes(report.lower_bound_bytes));
}

/// A row for each scheme that ran, the fastest one first, with a star at the first that is correct;
/// below it the values that overflowed and the schemes that were skipped.
std::string compare_table(const CompareReport& report) {
  std::vector<const SchemeFigures*> ran;
  std::string skipped;
  double dense_seconds = 0;
  for (const SchemeFigures& figures : report.schemes) {
    if (figures.skipped) {
      skipped += fmt::format("{} skipped: {}\n", figures.name, *figures.skipped);
      continue;
    }
    ran.push_back(&figures);
    if (figures.name == "dense_ring") dense_seconds = figures.seconds_median;
  }
  std::sort(ran.begin(), ran.end(), [](const SchemeFigures* a, const SchemeFigures* b) {
    return a->seconds_median < b->seconds_median;
  });
  Table table({{"", Table::Align::left},
               {"scheme", Table::Align::left},
               {"busiest worker"},
               {"× ideal"},
               {"seconds"},
               {"× faster than dense"},
               {"imbalance"},
               {"memory"},
               {"correct", Table::Align::left}});
  std::string overflowed;
  bool has_winner = false;  // the fastest one that is right
  for (const SchemeFigures* each : ran) {
    const SchemeFigures& of = *each;
    const bool wins = of.correct && !has_winner;
    has_winner = has_winner || wins;
    std::string name = of.chosen.empty() ? of.name : fmt::format("{}: {}", of.name, of.chosen);
    if (of.rounds > 1) name += fmt::format(" in {} rounds", of.rounds);
    table.add_row({wins ? "*" : "", std::move(name), format_bytes(of.bytes_busiest()),
                   ratio(of.bytes_busiest(), report.partitioned_ideal_bytes, 3),
                   format_seconds(of.seconds_median),
                   dense_seconds > 0 ? ratio(dense_seconds, of.seconds_median, 2) : "-",
                   of.imbalance
                       ? fmt::format("{:.3f}", std::max(of.imbalance->push, of.imbalance->pull))
                       : "-",
                   format_bytes(static_cast<double>(of.memory_bytes)), of.correct ? "yes" : "NO"});
    if (of.non_finite > 0) {
      overflowed +=
          fmt::format("{}: {} values of a step's sums are not finite: too large for --wire?\n",
                      of.name, of.non_finite);
    }
  }
  return table.text() + overflowed + skipped;
}

/// @throws InputError if nothing is known of the network
std::string explanation(const Comparison& comparison) {
  const std::optional<Network> network = comparison.network();
  if (!network) {
    throw InputError(
        "--explain: nothing is known of the network: give --network (from calibrate), or a --rate "
        "where links are local");
  }
  return predictions_table(comparison.predictions(*network));
}

Json provenance_of(const CompareArguments& given, const CompareReport& report) {
  Json json = provenance_json();
  json["trace"] = given.trace;
  if (!given.network.empty()) json["network"] = given.network;
  json["seed"] = report.trace.seed;
  return json;
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
  if (given.over_mpi()) {
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
          memory_needs_text(comparison->memory_needs(), workers->on_this_machine()) + explained);
  }
  const CompareReport report = comparison->run();
  if (!workers->leads()) return;
  progress->erase();
  print(json->tables(), compare_heading(report, given.transport) + compare_table(report));
  json->write(compare_json(report, given.transport, provenance_of(given, report)));
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
  add_transport(command, *given);
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
  add_count(command, "--repeat", given->options.repeat, 1, 1'000'000,
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
  command
      .add_option("--device", given->device,
                  "Where gradients are and kernels run: cpu (if not given), cuda (a machine's GPUs "
                  "in turn) or cuda:N")
      ->type_name("cpu|cuda|cuda:N");
  command.add_flag("--announce", given->options.announce,
                   "Announce the rows of a step before its clock starts, to schemes that use them "
                   "(balanced, owned); their bytes are counted");
  command.add_flag("--explain", given->explain,
                   "Print what each scheme is expected to take, best first: what auto goes by "
                   "(needs --rate, --network or --clock virtual)");
  add_count(command, "--block", given->options.scheme_options.block, 1, 1 << 20,
            "Elements of a block of block_ps (256 if not given)");
  add_count(command, "--workers-per-node", given->options.scheme_options.workers_per_node, 1,
            1 << 20, "The workers of a node, for two_level (as the transport tells if not given)");
  command
      .add_option("--between-nodes", given->options.scheme_options.between_nodes,
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
  command.add_flag("--force", given->options.force, "Replace a folder --result that is there");
  add_json(command, given->json);
  command.footer(
      "Bytes are what crosses the port in a step: payloads and headers between different workers.\n"
      "'correct' compares every element on every worker with a sum made from the trace's files.\n"
      "Example:\n"
      "  sparsesync compare TRACE --rate 200mbit --latency 50us --json compare.json\n"
      "  sparsesync compare TRACE --rate 25gbit --latency 10us --clock virtual\n"
      "  sparsesync compare TRACE --schemes auto --rate 25gbit --latency 10us --explain\n"
      "  mpirun -np 8 sparsesync compare TRACE --transport mpi\n"
      "  mpirun -np 8 sparsesync compare TRACE --transport nccl");
  command.callback([given, &command] {
    for (const SchemeOption option : kSchemeOptions) {
      if (command.count(fmt::format("--{}", name_of(option))) > 0) {
        given->options.given.push_back(option);
      }
    }
    compare(*given);
  });
}

}  // namespace sparsesync
