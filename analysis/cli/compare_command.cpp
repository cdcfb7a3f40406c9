// `sparsesync compare`: runs every scheme on a trace and prints bytes, seconds and correctness.
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
  CompareOptions options;  // receives the options that need no conversion
};

/// Parses --device: "cpu", "cuda", or one GPU such as "cuda:0".
/// @return nothing for the CPU
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
        fmt::format("--device '{}': use cpu, cuda (each machine's GPUs in turn) or one "
                    "GPU, such as cuda:0",
                    device));
  }
  return CompareOptions::Gpu{number};
}

CompareOptions options_from(const CompareArguments& given) {
  given.check();
  if (!given.has_processes() && (given.chunk || given.window)) {
    throw InputError("--chunk and --window apply only to --transport mpi or ucx: remove them");
  }
  if (given.clock != "real" && given.clock != "virtual") {
    throw InputError(fmt::format("--clock '{}': use real or virtual", given.clock));
  }
  if (!given.is_local() && given.clock == "virtual") {
    throw InputError(
        fmt::format("--clock virtual needs all workers in one process: remove --transport {}, or "
                    "use --clock real",
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
    throw InputError("--transport nccl connects GPUs: remove --device cpu");
  }
  if (options.gpu && given.clock == "virtual") {
    throw InputError(
        "--clock virtual records computation on CPUs only: remove --device, or use --clock real");
  }
  if (given.clock == "virtual") options.clock = CompareClock::replayed;
  options.deadline = given.deadline();
  if (given.memory > 0) options.memory = given.memory;
  if (!given.result.empty()) options.result = given.result;
  return options;
}

/// Reads --network. Predictions use it, and so does the replay of the virtual clock. --rate and
/// --latency override the file.
/// @param between_nodes  whether workers are on more than one machine
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

/// Formats a / b; "-" if b is not positive.
std::string ratio(double a, double b, int digits) {
  return b > 0 ? fmt::format("{:.{}f}", a / b, digits) : "-";
}

/// Returns one line with the workspace that each scheme will need.
/// @param workers  workers on this machine
std::string memory_needs_text(const std::vector<MemoryNeed>& needs, int workers) {
  std::string text = fmt::format("memory needed (workspace, {} workers on this machine):", workers);
  for (const MemoryNeed& need : needs) {
    text += fmt::format(" {} {}{}", need.scheme, format_bytes(need.bytes_of_a_worker * workers),
                        need.skipped ? " (skipped)" : "");
    text += &need == &needs.back() ? "\n" : ",";
  }
  return text;
}

/// Returns the table of --explain, with a row per prediction.
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
      transport == "mpi" || transport == "ucx"
          ? "real links"
          : fmt::format(
                "{}, latency {}",
                report.link.rate_bps ? format_rate(*report.link.rate_bps) : "rate not limited",
                format_seconds(report.link.latency_s));
  return fmt::format(
      "{} workers over {} ({}, {} clock), {} step{}, median of {}\n"
      "dense gradient {}, partitioned ideal {}, lower bound {} a step for the busiest worker\n\n",
      report.trace.workers, transport, link, name_of(report.clock), report.trace.steps,
      report.trace.steps == 1 ? "" : "s", report.repeat, format_bytes(dense),
      format_bytes(report.partitioned_ideal_bytes), format_bytes(report.lower_bound_bytes));
}

/// Returns a row for each scheme that ran, the fastest first. A star marks the fastest correct
/// scheme. Lines below the table report overflowed values and skipped schemes.
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
  bool has_winner = false;  // the fastest correct scheme
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
          fmt::format("{}: {} summed values per step are not finite; --wire may be too narrow\n",
                      of.name, of.non_finite);
    }
  }
  return table.text() + overflowed + skipped;
}

/// Returns the text of --explain.
/// @throws InputError if no option describes the network
std::string explanation(const Comparison& comparison) {
  const std::optional<Network> network = comparison.network();
  if (!network) {
    throw InputError(
        "--explain needs a network: pass --network with a file from calibrate, --clock virtual, or "
        "--rate with local links");
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

Chunks chunks_from(const CompareArguments& given) {
  Chunks chunks;
  if (given.chunk > 0) chunks.bytes = given.chunk;
  if (given.window > 0) chunks.window = given.window;
  return chunks;
}

void compare(const CompareArguments& given) {
  CompareOptions options = options_from(given);
  std::unique_ptr<Workers> workers;
  if (given.has_processes()) workers = given.processes(chunks_from(given));
  std::unique_ptr<JsonOutput> json;
  std::unique_ptr<Progress> progress;
  std::optional<Comparison> comparison;
  std::string explained;
  const auto prepare = [&] {
    take_network(given, !workers || workers->on_this_machine() < workers->size(), options);
    Trace trace = Trace::open(given.trace);
    if (!workers) {
      // With the virtual clock, only the replay applies the link's rate and latency.
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
    // Computed before anything is printed, because it throws if the network is unknown.
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
      "compare", "Synchronize a trace's gradients with each scheme: bytes, seconds, correctness");
  command.add_option("trace", given->trace, "Folder of the trace")->type_name("TRACE")->required();
  command
      .add_option("--schemes", given->schemes,
                  "Schemes to run, comma-separated: names from 'info --schemes', or auto, which "
                  "selects the scheme that is expected to be fastest (default: all)")
      ->type_name("all|a,b,c");
  command
      .add_option(
          "--transport", given->transport,
          "Connection between the workers: local (threads of this process, the default), "
          "mpi or ucx (processes started by mpirun, for ucx also by 'sparsesync launch') or "
          "nccl (GPUs of threads or processes)")
      ->type_name("local|mpi|ucx|nccl");
  add_rate(command, "--rate", given->rate_bps,
           "With --transport local: rate of each worker's link, per direction, such as 200mbit "
           "(default: not limited)");
  add_seconds(command, "--latency", given->latency_s,
              "With --transport local: latency of each worker's link, such as 50us (default: 0)");
  command
      .add_option("--clock", given->clock,
                  "Clock for the reported seconds. real measures. virtual records each worker's "
                  "computation and replays it on a simulated link, as if each worker had a "
                  "separate machine; it needs --transport local (default: real)")
      ->type_name("real|virtual");
  command
      .add_option("--network", given->network,
                  "Network file from 'sparsesync calibrate', used to predict seconds; with --clock "
                  "virtual and without --rate, also the simulated link")
      ->type_name("NETWORK.json");
  add_count(command, "--repeat", given->options.repeat, 1, 1'000'000,
            "Repetitions of all steps; seconds are the median over them (default: 5)");
  command
      .add_option(
          "--pattern", given->pattern,
          "Communication pattern of all_gather, and of the gather phase of split_all_gather and "
          "dynamic_split (default: ring)")
      ->type_name("ring|hierarchy|point_to_point");
  command
      .add_option("--wire", given->wire,
                  "Type in which values are sent; no wider than the tensor's dtype (default: the "
                  "tensor's dtype)")
      ->type_name("f32|bf16|f16");
  command
      .add_option("--device", given->device,
                  "Device that holds the gradients and runs the kernels: cpu, cuda (each machine's "
                  "GPUs in turn) or cuda:N (default: cpu; cuda with --transport nccl)")
      ->type_name("cpu|cuda|cuda:N");
  command.add_flag("--announce", given->options.announce,
                   "Index prefetch: exchange row indices before the clock of a step starts. Only "
                   "balanced and owned use it. The bytes are counted, the seconds are not");
  command.add_flag("--explain", given->explain,
                   "Print the predicted seconds, bytes and memory of each scheme, best first; auto "
                   "uses the same prediction. Needs --rate, --network or --clock virtual");
  add_count(command, "--block", given->options.scheme_options.block, 1, 1 << 20,
            "Elements per block of block_ps (default: 256)");
  add_count(command, "--workers-per-node", given->options.scheme_options.workers_per_node, 1,
            1 << 20, "Workers per node, for two_level (default: as the transport reports)");
  command
      .add_option("--between-nodes", given->options.scheme_options.between_nodes,
                  "Scheme that two_level uses between nodes (default: balanced)")
      ->type_name("NAME");
  add_bytes(command, "--memory", given->memory,
            "Maximum workspace per worker, such as 2GiB; the same limit applies to a worker's "
            "inputs and reference sums (default: an equal share of 80% of the free memory)");
  add_seconds(command, "--deadline", given->deadline_s,
              "Timeout of each wait for another worker (default: 60s)");
  add_bytes(command, "--chunk", given->chunk,
            "With --transport mpi or ucx: maximum size of the chunks of a message (default: "
            "16KiB)");
  add_count(command, "--window", given->window, 1, 65'536,
            "With --transport mpi or ucx: maximum number of chunks that a worker has in flight "
            "(default: 14)");
  command
      .add_option("--result", given->result,
                  "Write every worker's result of every step: DIR/SCHEME/w0003.s0001.safetensors "
                  "is that of worker 3 at step 1")
      ->type_name("DIR");
  command.add_flag("--force", given->options.force, "Replace the folder of --result if it exists");
  add_json(command, given->json);
  command.footer(
      "Columns of the table:\n"
      "  busiest worker       bytes per step that the busiest worker sends or receives, whichever\n"
      "                       is more: payloads and headers between different workers\n"
      "  × ideal              busiest worker / partitioned ideal\n"
      "  seconds              seconds per step; median over --repeat\n"
      "  × faster than dense  seconds of dense_ring / seconds\n"
      "  imbalance            load of the fullest server / mean load; push or pull, whichever is\n"
      "                       more (Zen, OSDI 2025, Definition 8)\n"
      "  memory               peak workspace of the worker that needs most\n"
      "  correct              yes if every element on every worker matches a reference sum that "
      "is\n"
      "                       computed from the trace files alone\n"
      "The partitioned ideal is the bytes of a push and a pull with perfect balance and indices\n"
      "at their entropy. The lower bound counts values alone and holds for every scheme.\n"
      "Example:\n"
      "  sparsesync compare TRACE --rate 200mbit --latency 50us --json compare.json\n"
      "  sparsesync compare TRACE --rate 25gbit --latency 10us --clock virtual\n"
      "  sparsesync compare TRACE --schemes auto --rate 25gbit --latency 10us --explain\n"
      "  mpirun -np 8 sparsesync compare TRACE --transport mpi\n"
      "  sparsesync launch -n 8 -- sparsesync compare TRACE --transport ucx\n"
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
