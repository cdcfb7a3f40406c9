// `sparsesync plan`: what each scheme is expected to take among other numbers of workers.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/predicted.h"
#include "analysis/cli/progress.h"
#include "analysis/cli/units.h"
#include "analysis/plan/extrapolation.h"
#include "analysis/plan/scale_plan.h"

namespace sparsesync {
namespace {

struct PlanArguments {
  std::string trace;
  std::string workers = "2..1024";
  NetworkArguments network;
  std::int64_t memory = 0;
  std::string json;
};

void run_plan(const PlanArguments& given) {
  const std::vector<int> workers = workers_from(given.workers, 2);
  const auto [network, measured, is_inside] = network_from("plan", given.network);
  const char* const inside_a_node = is_inside ? ", the link inside a node: no other is known" : "";
  const Trace trace = Trace::open(given.trace);
  JsonOutput json(given.json);
  const SchemeOptions options;
  const Outlook outlook(trace, options, kTouchesToPlanBy);
  Progress progress("planning");
  const ScalePlan plan =
      plan_over(outlook, network, options, workers,
                given.memory > 0 ? std::optional<double>(given.memory) : std::nullopt,
                [&](std::int64_t done, std::int64_t total) { progress.update(done, total); });
  progress.erase();
  print(json.tables(),
        fmt::format("{} each way, latency {}{}{}\n{} of {} steps looked at\n\n",
                    format_rate(network.rate_bps), format_seconds(network.latency_s), inside_a_node,
                    measured ? "" : "; processors take no time: --network has what they do",
                    outlook.steps(), trace.header().steps) +
            plan_table(plan, outlook.known_workers(), outlook.eighth_of_workers()));
  Json provenance = provenance_json();
  provenance["trace"] = given.trace;
  if (measured) provenance["network"] = given.network.file;
  json.write(plan_json(plan, network, provenance));
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto given = std::make_shared<PlanArguments>();
  CLI::App& command = *app.add_subcommand(
      "plan", "What each scheme is expected to take among other numbers of workers");
  command.add_option("trace", given->trace, "A trace's folder")->type_name("TRACE")->required();
  command
      .add_option("--workers", given->workers,
                  "From the fewest to the most, by powers of two, or numbers with commas (2..1024 "
                  "if not given; 65536 at most)")
      ->type_name("2..1024|8,12,...");
  add_network(command, given->network);
  add_bytes(command, "--memory", given->memory,
            "Workspace of each worker at most, such as 2GiB (any if not given)");
  add_json(command, given->json);
  command.footer(
      "Up to the trace's workers all sparsity is the trace's; beyond, its growth is extrapolated.\n"
      "A network of calibrate counts with the latency of a quiet link and the rate of a loaded "
      "one.\n"
      "Example:\n"
      "  sparsesync plan TRACE --workers 2..1024 --rate 25gbit --latency 10us\n"
      "  sparsesync plan TRACE --network NETWORK.json --json plan.json");
  command.callback([given] { run_plan(*given); });
}

}  // namespace sparsesync
