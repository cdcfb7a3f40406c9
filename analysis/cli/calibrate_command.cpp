// `sparsesync calibrate`: latency and rate of the links between workers, what a byte of rows costs
// a processor: NETWORK.json, for predictions.
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
  int workers = 0;  // over local; 0: not given
  int repeat = 9;
  std::string out;
  bool force = false;
  std::string json;
};

std::unique_ptr<Workers> workers_from(const CalibrateArguments& given) {
  constexpr int kWorkers = 8;
  given.check();
  if (given.transport == "nccl") {
    throw InputError("calibrate measures links of the host: use --transport local or mpi");
  }
  if (given.is_local()) {
    return std::make_unique<LocalWorkers>(given.workers > 0 ? given.workers : kWorkers,
                                          given.link());
  }
  if (given.workers > 0) {
    throw InputError(
        "--workers is for --transport local alone: mpirun -np says how many there are");
  }
  return std::make_unique<MpiWorkers>(given.deadline(), MpiChunks{});
}

std::string table_of(const NetworkFile& network) {
  Table table({{"link", Table::Align::left},
               {"latency"},
               {"95% of"},
               {"rate"},
               {"95% of", Table::Align::right}});
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
  const char* const loaded = "all to all: what one worker receives while all send\n";
  return table.text() + (network.inter_loaded || network.intra_loaded ? loaded : "") +
         fmt::format("a byte of rows: {} to encode, {} to aggregate, on one core\n",
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
  // A link between threads stands for one between machines.
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
  print(
      json->tables(),
      table_of(network) +
          (crowded ? fmt::format("{} processes share {} core{}: part of this is waiting for one\n",
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
      "calibrate", "Measure latency and rate of the links, and what bytes cost a processor");
  add_transport(command, *given)->required();
  add_count(command, "--workers", given->workers, 2, 1024, "Over local (8 if not given)");
  add_rate(command, "--rate", given->rate_bps,
           "Over local: of each worker's link, such as 200mbit (unshaped if not given)");
  add_seconds(command, "--latency", given->latency_s,
              "Over local: of each worker's link, such as 50us (0 if not given)");
  add_count(command, "--repeat", given->repeat, 1, 10'000,
            "Passes over all sizes of messages (9 if not given)");
  add_seconds(command, "--deadline", given->deadline_s,
              "Of each wait for another worker (60 s if not given)");
  command.add_option("--out", given->out, "Where the result goes")
      ->type_name("NETWORK.json")
      ->required();
  command.add_flag("--force", given->force, "Replace a file that is there");
  add_json(command, given->json);
  command.footer(
      "Worker 0 times messages with a worker of its node and with workers of up to three others,\n"
      "one pair after another; then all send to all, which is what \"all to all\" shows. Links of\n"
      "local count as links between nodes.\n"
      "Example:\n"
      "  mpirun -np 8 sparsesync calibrate --transport mpi --out NETWORK.json\n"
      "  sparsesync compare TRACE --clock virtual --network NETWORK.json");
  command.callback([given] { run_calibrate(*given); });
}

}  // namespace sparsesync
