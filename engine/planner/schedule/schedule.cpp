#include "engine/planner/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/planner/schedule/policies.h"
#include "engine/support/quote.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

constexpr std::array kPolicies{
    SchedulePolicy{"sequential", "each layer by itself, after backward", schedule_sequentially},
    SchedulePolicy{"wfbp", "each layer by itself, as soon as it is ready", schedule_wfbp},
    SchedulePolicy{"merge_all", "all layers together, after backward (SyncEASGD)",
                   schedule_merge_all},
    SchedulePolicy{"mg_wfbp", "under backward, merged greedily (MG-WFBP)", schedule_mg_wfbp},
    SchedulePolicy{"mg_wfbp_exact", "under backward, merged so that nothing ends sooner",
                   schedule_mg_wfbp_exact},
    SchedulePolicy{"lazy", "under backward, in buckets of some bytes (GradientFlow)",
                   schedule_lazily},
    SchedulePolicy{"dear", "reduces under backward, gathers under the next forward (DeAR)",
                   schedule_dear},
    SchedulePolicy{"auto",
                   "the one of these that takes the least, or gathers wherever the link is idle",
                   schedule_auto}};

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
  throw InputError(fmt::format("there is no schedule {}; there are {}", in_quotes(name), known));
}

void check_schedule(const Schedule& schedule, std::size_t layers) {
  int before = static_cast<int>(layers);
  for (const LayerRange range : schedule.buckets) {
    if (range.last != before - 1 || range.first > range.last || range.first < 0) {
      throw InputError(fmt::format("a schedule with layers {} to {} behind layer {}", range.first,
                                   range.last, before));
    }
    before = range.first;
  }
  if (before != 0) throw InputError(fmt::format("a schedule without its first {} layers", before));
  std::vector<std::array<int, kPhases>> phases(schedule.buckets.size());
  for (const ScheduledPhase& each : schedule.order) {
    if (each.bucket >= phases.size()) {
      throw InputError(fmt::format("a schedule with bucket {} of {}", each.bucket, phases.size()));
    }
    std::array<int, kPhases>& of_bucket = phases[each.bucket];
    const auto phase = static_cast<std::size_t>(each.phase);
    const bool comes_late = std::any_of(of_bucket.begin() + static_cast<std::ptrdiff_t>(phase),
                                        of_bucket.end(), [](int times) { return times > 0; });
    const bool lacks_reduce =
        each.phase == Phase::gather && of_bucket[static_cast<std::size_t>(Phase::reduce)] == 0;
    if (comes_late || lacks_reduce) {
      throw InputError(fmt::format("a schedule with the {} of bucket {} out of order",
                                   name_of(each.phase), each.bucket));
    }
    ++of_bucket[phase];
  }
  for (std::size_t bucket = 0; bucket < phases.size(); ++bucket) {
    if (phases[bucket][static_cast<std::size_t>(Phase::gather)] == 0) {
      throw InputError(fmt::format("a schedule that does not gather bucket {}", bucket));
    }
  }
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

namespace {

/// The announces of a schedule's step.
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
