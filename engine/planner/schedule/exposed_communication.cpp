#include "engine/planner/schedule/exposed_communication.h"

#include <algorithm>
#include <array>

#include "engine/planner/schedule/schedule_simulator.h"
#include "engine/planner/schedule/timeline.h"

namespace sparsesync {

std::vector<ExposedPhase> exposed_phases(std::span<const ScheduledLayer> layers,
                                         const BucketCosts& costs, const Schedule& schedule) {
  StepClock clock(layers, costs, schedule);
  constexpr std::array kPaces{1.0};
  // The first step has no gathers behind it; what the last one's do is not known.
  clock.step(kPaces);
  std::array<StepTimeline, 3> steps;
  for (StepTimeline& step : steps) clock.step(kPaces, &step);
  std::vector<double> seconds(schedule.order.size());
  for (const CrossedPart& part : crossed_parts(steps)) {
    if (part.step == 1 && part.is_exposed) seconds[part.place] += part.span.seconds();
  }
  const double least = 1e-9 * clock.communication_seconds();  // the rest is rounding
  std::vector<ExposedPhase> exposed;
  for (std::size_t place = 0; place < seconds.size(); ++place) {
    const auto [bucket, phase] = schedule.order[place];
    if (seconds[place] > least) exposed.push_back({bucket, phase, seconds[place]});
  }
  std::ranges::stable_sort(exposed, std::greater(), &ExposedPhase::seconds);
  return exposed;
}

std::string_view why_exposed(const Schedule& schedule, std::size_t bucket, Phase phase) {
  if (phase == Phase::announce) return "the forward pass is over before its rows are told";
  const bool reduces = phase == Phase::reduce;
  if (reduces && schedule.after_backward) {
    return "the schedule reduces when the backward pass is over";
  }
  if (!reduces && !schedule.under_forward) return "the next forward pass waits for all gathers";
  if (schedule.buckets[bucket].first == 0) {
    return "its gradient is ready last, and needed first: nothing is computed between";
  }
  return reduces ? "the link is still busy with it when the backward pass is over"
                 : "the next forward pass comes to it before the link does";
}

}  // namespace sparsesync
