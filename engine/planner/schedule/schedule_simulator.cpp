#include "engine/planner/schedule/schedule_simulator.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/base/error.h"

namespace sparsesync {

StepClock::StepClock(std::span<const ScheduledLayer> layers, const BucketCosts& costs,
                     const Schedule& schedule, std::size_t workers)
    : layers_(layers),
      schedule_(schedule),
      backward_until_(ready_seconds(layers)),
      ends_(workers),
      announces_at_(schedule.buckets.size()),
      ready_at_(schedule.buckets.size()),
      gathered_at_(schedule.buckets.size()) {
  std::vector<BucketSeconds> seconds;
  for (const LayerRange range : schedule.buckets) seconds.push_back(costs(range));
  for (const ScheduledPhase each : schedule.order) {
    takes_.push_back(seconds[each.bucket].of(each.phase));
  }
}

void StepClock::step(std::span<const double> paces, StepTimeline* timeline) {
  SPARSESYNC_EXPECT(paces.size(), ==, ends_.size());
  forward(paces, timeline);
  backward(paces, timeline);
  cross(timeline);
}

void StepClock::forward(std::span<const double> paces, StepTimeline* timeline) {
  if (timeline != nullptr) timeline->forward.clear();
  const double all_gathered = std::ranges::max(gathered_at_);
  for (std::size_t bucket = schedule_.buckets.size(); bucket-- > 0;) {
    const LayerRange range = schedule_.buckets[bucket];
    const std::span<const ScheduledLayer> layers = layers_.subspan(
        static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.size()));
    double before_last = 0;
    for (const ScheduledLayer& layer : layers.first(layers.size() - 1)) {
      before_last += layer.forward_s;
    }
    const double last = layers.back().forward_s;
    const double gathered = schedule_.under_forward ? gathered_at_[bucket] : all_gathered;
    announces_at_[bucket] = 0;
    for (std::size_t worker = 0; worker < ends_.size(); ++worker) {
      double now = std::max(ends_[worker], gathered);
      if (timeline != nullptr && worker == 0) {
        double begin = now;
        for (const ScheduledLayer& layer : layers) {
          const double end = begin + paces[0] * layer.forward_s;
          timeline->forward.push_back({begin, end});
          begin = end;
        }
      }
      now += paces[worker] * before_last;
      announces_at_[bucket] = std::max(announces_at_[bucket], now);
      ends_[worker] = now + paces[worker] * last;
    }
  }
}

void StepClock::backward(std::span<const double> paces, StepTimeline* timeline) {
  if (timeline != nullptr) {
    timeline->backward.clear();
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const double end = ends_[0] + paces[0] * backward_until_[layer];
      timeline->backward.push_back({end - paces[0] * layers_[layer].backward_s, end});
    }
  }
  for (std::size_t bucket = 0; bucket < schedule_.buckets.size(); ++bucket) {
    const auto first = static_cast<std::size_t>(schedule_.buckets[bucket].first);
    const double until =
        schedule_.after_backward ? backward_until_.front() : backward_until_[first];
    ready_at_[bucket] = 0;
    for (std::size_t worker = 0; worker < ends_.size(); ++worker) {
      ready_at_[bucket] = std::max(ready_at_[bucket], ends_[worker] + paces[worker] * until);
    }
  }
  for (std::size_t worker = 0; worker < ends_.size(); ++worker) {
    ends_[worker] += paces[worker] * backward_until_.front();
  }
}

void StepClock::cross(StepTimeline* timeline) {
  if (timeline != nullptr) timeline->crossed.clear();
  for (std::size_t place = 0; place < takes_.size(); ++place) {
    const auto [bucket, phase] = schedule_.order[place];
    double begin = free_at_;
    if (phase == Phase::announce) begin = std::max(begin, announces_at_[bucket]);
    if (phase == Phase::reduce) begin = std::max(begin, ready_at_[bucket]);
    free_at_ = begin + takes_[place];
    if (phase == Phase::gather) gathered_at_[bucket] = free_at_;
    if (timeline != nullptr) timeline->crossed.push_back({begin, free_at_});
  }
}

double StepClock::communication_seconds() const {
  return std::accumulate(takes_.begin(), takes_.end(), 0.0);
}

double step_seconds(std::span<const ScheduledLayer> layers, const BucketCosts& costs,
                    const Schedule& schedule) {
  constexpr std::array kPaces{1.0};
  StepClock clock(layers, costs, schedule);
  // The first step has no gathers of an earlier step. All later steps are equal.
  clock.step(kPaces);
  clock.step(kPaces);
  const double before = clock.ends().front();
  clock.step(kPaces);
  return clock.ends().front() - before;
}

}  // namespace sparsesync
