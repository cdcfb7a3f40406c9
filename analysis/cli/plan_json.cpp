#include "analysis/cli/output.h"

namespace sparsesync {
namespace {

Json workers_json(const WorkersPlan& plan) {
  Json schemes = Json::array();
  for (const Prediction& each : plan.predictions) {
    schemes.push_back(
        {{"name", each.way.scheme},
         {"pattern", each.way.pattern ? Json(name_of(*each.way.pattern)) : Json(nullptr)},
         {"seconds", each.seconds},
         {"bytes_busiest", each.bytes_busiest},
         {"memory_bytes", each.memory_bytes}});
  }
  return {
      {"n", plan.workers},
      {"best", schemes.empty() ? Json(nullptr) : schemes.front()["name"]},
      {"densification", plan.densification},
      {"extrapolated", !plan.is_known},
      {"densification_from_an_eighth", plan.densification_from_an_eighth},
      {"theorem", {{"balanced_s", plan.theorem.balanced}, {"hierarchy_s", plan.theorem.hierarchy}}},
      {"schemes", schemes}};
}

}  // namespace

std::string plan_json(const ScalePlan& plan, const Network& network, const Json& provenance) {
  Json workers = Json::array();
  for (const WorkersPlan& each : plan.plans) workers.push_back(workers_json(each));
  Json crossovers = Json::array();
  for (const Crossover& each : plan.crossovers) {
    crossovers.push_back({{"n", each.workers}, {"from", each.from}, {"to", each.to}});
  }
  return json_text({{"network", {{"latency_s", network.latency_s}, {"rate_bps", network.rate_bps}}},
                    {"workers", workers},
                    {"crossovers", crossovers},
                    {"provenance", provenance}});
}

}  // namespace sparsesync
