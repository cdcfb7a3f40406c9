#include "analysis/cli/output.h"

#include <optional>

namespace sparsesync {
namespace {

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json scheme_json(const SchemeFigures& figures) {
  if (figures.skipped) return {{"name", figures.name}, {"skipped", *figures.skipped}};
  Json choices = Json::array();
  for (const SpaceChoice& choice : figures.choices) {
    choices.push_back({{"index_code", text_or_null(choice.index_code)},
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
          {"rounds", figures.rounds},
          {"correct", figures.correct},
          {"chosen", text_or_null(figures.chosen)},
          {"tensors", choices}};
}

}  // namespace

std::string compare_json(const CompareReport& report, const std::string& transport,
                         const Json& provenance) {
  Json schemes = Json::array();
  for (const SchemeFigures& figures : report.schemes) schemes.push_back(scheme_json(figures));
  return json_text(
      {{"tensors", tensors_json(report.trace.tensors)},
       {"workers", report.trace.workers},
       {"transport", transport},
       {"clock", name_of(report.clock)},
       {"wire", report.wire ? Json(name_of(*report.wire)) : Json(nullptr)},
       {"announce", report.announce},
       {"network",
        {{"rate_bps", or_null(report.link.rate_bps)}, {"latency_s", report.link.latency_s}}},
       {"steps", report.trace.steps},
       {"repeat", report.repeat},
       {"partitioned_ideal_bytes", report.partitioned_ideal_bytes},
       {"lower_bound_bytes", report.lower_bound_bytes},
       {"provenance", provenance},
       {"schemes", schemes}});
}

}  // namespace sparsesync
