#include "engine/planner/schedule/policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "kernels/base/error.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

// ---- The policies, in the order of kPolicies.

/// Sends nothing during the backward pass: the baseline.
Schedule schedule_sequentially(const ScheduleQuestion& question) {
  Schedule schedule = one_after_another(question.layers, each_layer(question.layers));
  schedule.after_backward = true;
  return schedule;
}

/// Wait-free back-propagation (Poseidon, 2017): each layer is a bucket.
Schedule schedule_wfbp(const ScheduleQuestion& question) {
  return one_after_another(question.layers, each_layer(question.layers));
}

/// Merges all layers, and sends them after the backward pass (SyncEASGD, 2017).
Schedule schedule_merge_all(const ScheduleQuestion& question) {
  Schedule schedule = one_after_another(question.layers, merge_all(question.layers));
  schedule.after_backward = true;
  return schedule;
}

/// MG-WFBP as published (INFOCOM 2019).
Schedule schedule_mg_wfbp(const ScheduleQuestion& question) {
  return one_after_another(question.layers, merge_greedily(question));
}

/// MG-WFBP with the merging whose last bucket ends earliest.
Schedule schedule_mg_wfbp_exact(const ScheduleQuestion& question) {
  return one_after_another(question.layers, merge_exactly(question));
}

/// GradientFlow's lazy all-reduce (arXiv 1902.06855): a bucket is sent once it reaches a number of
/// bytes.
Schedule schedule_lazily(const ScheduleQuestion& question) {
  if (question.full_bytes) {
    return one_after_another(
        question.layers,
        merge_until_full(question.layers, *question.full_bytes, question.first_bytes));
  }
  Schedule best;
  double least = std::numeric_limits<double>::infinity();
  for (const double size : sizes_to_try(question.layers)) {
    Schedule schedule = one_after_another(question.layers, merge_until_full(question.layers, size));
    const double seconds = step_seconds(question.layers, question.costs, schedule);
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(schedule);
  }
  return best;
}

/// DeAR (ICDCS 2023): reduces run during the backward pass, gathers during the next forward pass.
Schedule schedule_dear(const ScheduleQuestion& question) {
  return gathers_under_forward(
      question.layers, question.full_bytes ? merge_until_full(question.layers, *question.full_bytes,
                                                              question.first_bytes)
                                           : merge_for_overlap(question));
}

constexpr std::array kPolicies{
    SchedulePolicy{"sequential", "each layer separately, after the backward pass",
                   schedule_sequentially},
    SchedulePolicy{"wfbp", "each layer separately, as soon as it is ready", schedule_wfbp},
    SchedulePolicy{"merge_all", "all layers merged, after the backward pass (SyncEASGD)",
                   schedule_merge_all},
    SchedulePolicy{"mg_wfbp", "during the backward pass, merged greedily (MG-WFBP)",
                   schedule_mg_wfbp},
    SchedulePolicy{"mg_wfbp_exact", "during the backward pass, merged to end as early as possible",
                   schedule_mg_wfbp_exact},
    SchedulePolicy{"lazy", "during the backward pass, in buckets of equal size (GradientFlow)",
                   schedule_lazily},
    SchedulePolicy{"dear",
                   "reduces during the backward pass, gathers during the next forward pass (DeAR)",
                   schedule_dear},
    SchedulePolicy{"auto", "the fastest of these, or one that gathers whenever the link is idle",
                   schedule_auto}};

/// Returns the announce phases of a step.
std::vector<ScheduledPhase> announces_of(std::span<const ScheduledLayer> layers,
                                         const std::vector<LayerRange>& buckets) {
  std::vector<ScheduledPhase> order;
  for (std::size_t bucket = buckets.size(); bucket-- > 0;) {
    if (layers[static_cast<std::size_t>(buckets[bucket].first)].announces) {
      order.push_back({bucket, Phase::announce});
    }
  }
  return order;
}

}  // namespace

double BucketSeconds::of(Phase phase) const {
  switch (phase) {
    case Phase::announce:
      return announce;
    case Phase::reduce:
      return reduce;
    case Phase::gather:
      return gather;
  }
  return 0;
}

std::span<const SchedulePolicy> schedule_policies() {
  return kPolicies;
}

const SchedulePolicy& schedule_policy_named(std::string_view name) {
  const auto* const found = std::ranges::find(kPolicies, name, &SchedulePolicy::name);
  if (found != kPolicies.end()) return *found;
  std::string known;
  for (const SchedulePolicy& policy : kPolicies) {
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  }
  throw InputError(fmt::format("unknown schedule {}: use one of {}", in_quotes(name), known));
}

std::vector<double> ready_seconds(std::span<const ScheduledLayer> layers) {
  std::vector<double> ready(layers.size());
  double now = 0;
  for (std::size_t layer = layers.size(); layer-- > 0;) {
    now += layers[layer].backward_s;
    ready[layer] = now;
  }
  return ready;
}

double compute_seconds(std::span<const ScheduledLayer> layers) {
  double seconds = 0;
  for (const ScheduledLayer& layer : layers) seconds += layer.forward_s + layer.backward_s;
  return seconds;
}

Schedule one_after_another(std::span<const ScheduledLayer> layers,
                           std::vector<LayerRange> buckets) {
  Schedule schedule{{}, announces_of(layers, buckets)};
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    schedule.order.push_back({bucket, Phase::reduce});
    schedule.order.push_back({bucket, Phase::gather});
  }
  schedule.buckets = std::move(buckets);
  return schedule;
}

Schedule gathers_under_forward(std::span<const ScheduledLayer> layers,
                               std::vector<LayerRange> buckets) {
  Schedule schedule{{}, announces_of(layers, buckets)};
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    schedule.order.push_back({bucket, Phase::reduce});
  }
  for (std::size_t bucket = buckets.size(); bucket-- > 0;) {
    schedule.order.push_back({bucket, Phase::gather});
  }
  schedule.buckets = std::move(buckets);
  schedule.under_forward = true;
  return schedule;
}

}  // namespace sparsesync
