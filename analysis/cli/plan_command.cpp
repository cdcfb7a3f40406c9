// `sparsesync plan`: predicts time, bytes and memory of each scheme for other numbers of workers.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
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

/// Returns the names of all schemes, in the order of the plan with the most workers.
std::vector<std::string> schemes_of(const ScalePlan& plan) {
  std::vector<std::string> names;
  for (std::size_t i = plan.plans.size(); i-- > 0;) {
    for (const Prediction& prediction : plan.plans[i].predictions) {
      if (std::find(names.begin(), names.end(), prediction.variant.scheme) == names.end()) {
        names.push_back(prediction.variant.scheme);
      }
    }
  }
  return names;
}

/// Returns a row of the table: `name`, then `cell` for each number of workers.
template <typename Cell>
std::vector<std::string> row_of(const ScalePlan& plan, std::string name, Cell&& cell) {
  std::vector<std::string> cells{std::move(name)};
  for (const WorkersPlan& each : plan.plans) cells.push_back(cell(each));
  return cells;
}

/// Returns a table with a row per scheme: `cell` formats its prediction for each number of workers.
/// @param title  title of the column with the schemes' names
template <typename Cell>
Table table_of_schemes(const ScalePlan& plan, std::string title, Cell&& cell) {
  std::vector<Table::Column> columns{{std::move(title), Table::Align::left}};
  for (const WorkersPlan& each : plan.plans) columns.push_back({format_count(each.workers) + " "});
  Table table(std::move(columns));
  for (const std::string& scheme : schemes_of(plan)) {
    table.add_row(row_of(plan, scheme, [&](const WorkersPlan& of) -> std::string {
      for (const Prediction& each : of.predictions) {
        if (each.variant.scheme == scheme) return cell(each, of);
      }
      return "- ";
    }));
  }
  return table;
}

/// Returns bytes, workspace and seconds of each scheme for each number of workers; a star marks the
/// fastest scheme. Then follow the theorem's optimum, γ, and the crossovers.
/// @param known_workers      workers of the trace; γ is extrapolated for more workers
/// @param eighth_of_workers  workers that the last row extrapolates from
std::string plan_table(const ScalePlan& plan, int known_workers, int eighth_of_workers) {
  std::string text;
  text += table_of_schemes(plan, "busiest worker, workers",
                           [](const Prediction& each, const WorkersPlan&) {
                             return format_bytes(each.bytes_busiest) + " ";
                           })
              .text() +
          "\n";
  text += table_of_schemes(plan, "workspace, workers",
                           [](const Prediction& each, const WorkersPlan&) {
                             return format_bytes(each.memory_bytes) + " ";
                           })
              .text() +
          "\n";
  Table table = table_of_schemes(
      plan, "seconds (*: fewest), workers", [](const Prediction& each, const WorkersPlan& of) {
        return format_seconds(each.seconds) + (&each == &of.predictions.front() ? "*" : " ");
      });
  table.add_row(row_of(plan, "theorem's optimum", [](const WorkersPlan& each) {
    return format_seconds(each.theorem.optimum()) + " ";
  }));
  const auto ratio = [](double number) { return fmt::format("{:.2f} ", number); };
  table.add_row(row_of(plan, "densification",
                       [&](const WorkersPlan& each) { return ratio(each.densification); }));
  table.add_row(
      row_of(plan,
             fmt::format("predicted from {} worker{}", eighth_of_workers,
                         eighth_of_workers == 1 ? "" : "s"),
             [&](const WorkersPlan& each) { return ratio(each.densification_from_an_eighth); }));
  text += table.text() + "\n";
  text +=
      "theorem's optimum: the shorter time of Zen's Theorem 1 (4-byte indices, no latency, perfect "
      "balance); schemes with shorter index codes can be faster\n";
  if (!plan.plans.empty() && !plan.plans.back().is_known) {
    text += fmt::format(
        "the trace has {0} workers: densification is measured up to {0} workers and extrapolated "
        "beyond; to judge the extrapolation, compare the last row with the row above it up to {0} "
        "workers\n",
        format_count(known_workers));
  }
  text +=
      "not included: dense_native (its cost depends on the transport) and two_level (the nodes are "
      "not known)\n";
  for (const Crossover& each : plan.crossovers) {
    text += fmt::format("from {} workers on, {} is faster than {}\n", format_count(each.workers),
                        each.to, each.from);
  }
  return text;
}

void run_plan(const PlanArguments& given) {
  const std::vector<int> workers = workers_from(given.workers, 2);
  const auto [network, measured, is_inside] = network_from("plan", given.network);
  const char* const inside_a_node =
      is_inside ? " (link inside a node: the network file has no link between nodes)" : "";
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
        fmt::format("{} per direction, latency {}{}{}\n{} of {} steps analyzed\n\n",
                    format_rate(network.rate_bps), format_seconds(network.latency_s), inside_a_node,
                    measured ? "" : "; CPU time counts as zero: pass --network to include it",
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
      "plan", "Predict time, bytes and memory of each scheme for other numbers of workers");
  command.add_option("trace", given->trace, "Folder of the trace")->type_name("TRACE")->required();
  command
      .add_option("--workers", given->workers,
                  "Numbers of workers: FIRST..LAST for these two and the powers of two between "
                  "them, or a comma-separated list; 2 to 65536 (default: 2..1024)")
      ->type_name("2..1024|8,12,...");
  add_network(command, given->network);
  add_bytes(command, "--memory", given->memory,
            "Maximum workspace per worker, such as 2GiB; schemes that need more are left out "
            "(default: no limit)");
  add_json(command, given->json);
  command.footer(
      "Sparsity is measured up to the trace's number of workers, and extrapolated beyond it.\n"
      "From a network file, plan uses the latency of an idle link and, if measured, the rate of a\n"
      "loaded link.\n"
      "Example:\n"
      "  sparsesync plan TRACE --workers 2..1024 --rate 25gbit --latency 10us\n"
      "  sparsesync plan TRACE --network NETWORK.json --json plan.json");
  command.callback([given] { run_plan(*given); });
}

}  // namespace sparsesync
