#include "analysis/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "analysis/cli/table.h"
#include "analysis/cli/units.h"

namespace sparsesync {
namespace {

/// Names of all schemes, in the order of the last plan's table.
std::vector<std::string> schemes_of(const ScalePlan& plan) {
  std::vector<std::string> names;
  for (std::size_t i = plan.plans.size(); i-- > 0;) {
    for (const Prediction& prediction : plan.plans[i].predictions) {
      if (std::find(names.begin(), names.end(), prediction.way.scheme) == names.end()) {
        names.push_back(prediction.way.scheme);
      }
    }
  }
  return names;
}

/// A row of the table: `cell` of each number of workers.
template <typename Cell>
std::vector<std::string> row_of(const ScalePlan& plan, std::string name, Cell&& cell) {
  std::vector<std::string> cells{std::move(name)};
  for (const WorkersPlan& each : plan.plans) cells.push_back(cell(each));
  return cells;
}

/// A row for each scheme: `cell` of what is expected of it among each number of workers.
/// @param title  of the column with the schemes' names
template <typename Cell>
Table table_of_schemes(const ScalePlan& plan, std::string title, Cell&& cell) {
  std::vector<Table::Column> columns{{std::move(title), Table::Align::left}};
  for (const WorkersPlan& each : plan.plans) columns.push_back({format_count(each.workers) + " "});
  Table table(std::move(columns));
  for (const std::string& scheme : schemes_of(plan)) {
    table.add_row(row_of(plan, scheme, [&](const WorkersPlan& of) -> std::string {
      for (const Prediction& each : of.predictions) {
        if (each.way.scheme == scheme) return cell(each, of);
      }
      return "- ";
    }));
  }
  return table;
}

}  // namespace

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
  table.add_row(row_of(
      plan,
      fmt::format("told from {} worker{}", eighth_of_workers, eighth_of_workers == 1 ? "" : "s"),
      [&](const WorkersPlan& each) { return ratio(each.densification_from_an_eighth); }));
  text += table.text() + "\n";
  text +=
      "theorem's optimum: the smaller of its two times, indices of 4 bytes, no latency, perfect "
      "balance; what codes indices better takes less\n";
  if (!plan.plans.empty() && !plan.plans.back().is_known) {
    text += fmt::format(
        "the trace has {0} workers: densification beyond is extrapolated; how well that goes shows "
        "in the last row, up to {0} workers\n",
        format_count(known_workers));
  }
  text +=
      "not told: dense_native, which is the network's own, and two_level, as no nodes are known\n";
  for (const Crossover& each : plan.crossovers) {
    text += fmt::format("from {} workers on {} is faster than {}\n", format_count(each.workers),
                        each.to, each.from);
  }
  return text;
}

}  // namespace sparsesync
