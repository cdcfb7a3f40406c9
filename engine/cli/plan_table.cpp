#include "engine/cli/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "analysis/table.h"
#include "engine/cli/units.h"

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

std::string seconds_of(const WorkersPlan& plan, const std::string& scheme) {
  for (const Prediction& each : plan.predictions) {
    if (each.way.scheme != scheme) continue;
    return format_seconds(each.seconds) + (&each == &plan.predictions.front() ? "*" : " ");
  }
  return "- ";
}

}  // namespace

std::string plan_table(const ScalePlan& plan, int known_workers) {
  std::vector<Table::Column> columns{{"workers", Table::Align::left}};
  for (const WorkersPlan& each : plan.plans) columns.push_back({format_count(each.workers) + " "});
  Table table(std::move(columns));
  for (const std::string& scheme : schemes_of(plan)) {
    table.add_row(
        row_of(plan, scheme, [&](const WorkersPlan& each) { return seconds_of(each, scheme); }));
  }
  table.add_row(row_of(plan, "theorem's optimum", [](const WorkersPlan& each) {
    return format_seconds(each.theorem.optimum()) + " ";
  }));
  const auto ratio = [](double number) { return fmt::format("{:.2f} ", number); };
  table.add_row(row_of(plan, "densification",
                       [&](const WorkersPlan& each) { return ratio(each.densification); }));
  table.add_row(row_of(plan, "fitted to an eighth", [&](const WorkersPlan& each) {
    return ratio(each.densification_from_an_eighth);
  }));
  std::string text = table.text() + "\n";
  if (!plan.plans.empty() && !plan.plans.back().is_known) {
    text += fmt::format(
        "the trace has {} workers: densification beyond is extrapolated; what the fit is "
        "worth shows in the last row,\nwhich knows the first eighth of them alone\n",
        format_count(known_workers));
  }
  for (const Crossover& each : plan.crossovers) {
    text += fmt::format("from {} workers on {} is faster than {}\n", format_count(each.workers),
                        each.to, each.from);
  }
  return text;
}

}  // namespace sparsesync
