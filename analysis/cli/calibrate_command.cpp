// `sparsesync calibrate`: measures latency and rate of the links between workers and the CPU time
// per byte, and writes them to NETWORK.json for predictions.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "analysis/calibrate/calibrate.h"
#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/units.h"
#include "engine/planner/calibration/measure.h"
#include "engine/support/json.h"
#include "sparsesync/network_file.h"

namespace sparsesync {
namespace {

struct CalibrateArguments : TransportArguments {
  int workers = 0;  // with --transport local; 0: not given
  int repeat = 9;
  std::string out;
  bool force = false;
  std::string json;
};

std::unique_ptr<Workers> workers_from(const CalibrateArguments& given) {
  constexpr int kWorkers = 8;
  given.check();
  if (given.transport == "nccl") {
    throw InputError(
        "calibrate measures the links of hosts, not of GPUs: use --transport local, mpi or ucx");
  }
  if (given.is_local()) {
    return std::make_unique<LocalWorkers>(given.workers > 0 ? given.workers : kWorkers,
                                          given.link());
  }
  if (given.workers > 0) {
    throw InputError(
        "--workers applies only to --transport local: remove it, mpirun -np or launch -n sets the "
        "number");
  }
  return given.processes(Chunks{});
}

std::string table_of(const NetworkFile& network) {
  Table table({{"link", Table::Align::left},
               {"latency"},
               {"95% interval"},
               {"rate"},
               {"95% interval", Table::Align::right}});
  const auto row = [&](const char* name, const std::optional<FittedLink>& link) {
    if (!link) return;
    table.add_row(
        {name, format_seconds(link->latency_s),
         fmt::format("{} to {}", format_seconds(link->latency_ci.low),
                     format_seconds(link->latency_ci.high)),
         format_rate(link->rate_bps),
         fmt::format("{} to {}", format_rate(link->rate_ci.low), format_rate(link->rate_ci.high))});
  };
  row("between nodes", network.inter);
  row("  all to all", network.inter_loaded);
  row("inside a node", network.intra);
  row("  all to all", network.intra_loaded);
  const char* const loaded =
      "all to all: latency and rate of one worker's messages while all workers send at once\n";
  return table.text() + (network.inter_loaded || network.intra_loaded ? loaded : "") +
         fmt::format("CPU time per byte of rows on one core: {} to encode, {} to aggregate\n",
                     format_seconds(network.host.encode_s_per_byte),
                     format_seconds(network.host.aggregate_s_per_byte));
}

void run_calibrate(const CalibrateArguments& given) {
  const std::unique_ptr<Workers> workers = workers_from(given);
  std::unique_ptr<JsonOutput> json;
  std::unique_ptr<OutputFile> out;
  workers->together([&] {
    if (!workers->leads()) return;
    out = std::make_unique<OutputFile>(given.out, given.force);
    json = std::make_unique<JsonOutput>(given.json);
  });
  ProbeOptions options;
  options.repeat = given.repeat;
  options.deadline = given.deadline();
  // A link between threads represents a link between machines.
  options.each_a_node = given.is_local();
  options.under_load = true;
  workers->agree("calibrate", {{"--repeat", fmt::format("{}", given.repeat)},
                               {"--deadline", fmt::format("{} s", given.deadline_s)}});
  Progress progress("calibrating");
  const NetworkFile network =
      calibrate(*workers, options, [&](std::int64_t done, std::int64_t total) {
        if (workers->leads()) progress.update(done, total);
      });
  if (!workers->leads()) return;
  progress.erase();
  const std::string text = network_json(network, provenance());
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const bool crowded = !given.is_local() && workers->on_this_machine() > cores;
  print(json->tables(),
        table_of(network) +
            (crowded ? fmt::format("{} processes share {} core{}: waiting for a core is included\n",
                                   workers->on_this_machine(), cores, cores == 1 ? "" : "s")
                     : ""));
  out->write(text);
  out->write("\n");
  out->commit();
  json->write(text);
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  auto given = std::make_shared<CalibrateArguments>();
  CLI::App& command = *app.add_subcommand(
      "calibrate", "Measure latency and rate of the links, and the CPU time per byte");
  command
      .add_option("--transport", given->transport,
                  "Connection between the workers: local (threads of this process), or mpi or ucx "
                  "(processes started by mpirun, for ucx also by 'sparsesync launch')")
      ->type_name("local|mpi|ucx")
      ->required();
  add_count(command, "--workers", given->workers, 2, 1024,
            "With --transport local: number of workers (default: 8)");
  add_rate(command, "--rate", given->rate_bps,
           "With --transport local: rate of each worker's link, per direction, such as 200mbit "
           "(default: not limited)");
  add_seconds(command, "--latency", given->latency_s,
              "With --transport local: latency of each worker's link, such as 50us (default: 0)");
  add_count(command, "--repeat", given->repeat, 1, 10'000,
            "Passes over all message sizes, after one warm-up pass (default: 9)");
  add_seconds(command, "--deadline", given->deadline_s,
              "Timeout of each wait for another worker (default: 60s)");
  command.add_option("--out", given->out, "Network file to write")
      ->type_name("NETWORK.json")
      ->required();
  command.add_flag("--force", given->force, "Replace the network file if it exists");
  add_json(command, given->json);
  command.footer(
      "Worker 0 exchanges timed messages with a worker of its node and with one worker of each of\n"
      "up to three other nodes, one pair after another. Then all workers send to all others at\n"
      "once: these are the rows \"all to all\". With --transport local, links count as links\n"
      "between nodes.\n"
      "Example:\n"
      "  mpirun -np 8 sparsesync calibrate --transport mpi --out NETWORK.json\n"
      "  sparsesync compare TRACE --clock virtual --network NETWORK.json");
  command.callback([given] { run_calibrate(*given); });
}

}  // namespace sparsesync
