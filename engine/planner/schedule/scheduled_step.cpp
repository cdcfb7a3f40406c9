#include "engine/planner/schedule/scheduled_step.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace sparsesync {

ScheduledStep::ScheduledStep(Schedule schedule, std::size_t layers)
    : schedule_(std::move(schedule)),
      bucket_of_(layers),
      announces_(schedule_.buckets.size()),
      untold_(schedule_.buckets.size()),
      not_ready_(schedule_.buckets.size()),
      submitted_(schedule_.buckets.size()) {
  for (std::size_t bucket = 0; bucket < schedule_.buckets.size(); ++bucket) {
    const LayerRange range = schedule_.buckets[bucket];
    for (int layer = range.first; layer <= range.last; ++layer) {
      bucket_of_[static_cast<std::size_t>(layer)] = bucket;
    }
  }
  for (const ScheduledPhase& each : schedule_.order) {
    if (each.phase == Phase::announce) announces_[each.bucket] = 1;
  }
  rest_.reserve(schedule_.buckets.size());
  begin();
}

void ScheduledStep::begin() {
  for (std::size_t bucket = 0; bucket < schedule_.buckets.size(); ++bucket) {
    const auto layers = static_cast<std::size_t>(schedule_.buckets[bucket].size());
    untold_[bucket] = announces_[bucket] != 0 ? layers : 0;
    not_ready_[bucket] = layers;
    submitted_[bucket] = 0;
  }
}

std::optional<std::size_t> ScheduledStep::announced(std::size_t layer) {
  const std::size_t bucket = bucket_of_[layer];
  SPARSESYNC_EXPECT(untold_[bucket], >, std::size_t{0});
  return is_last(untold_[bucket]) ? std::optional(bucket) : std::nullopt;
}

std::span<const std::size_t> ScheduledStep::end_forward() {
  rest_.clear();
  for (std::size_t bucket = 0; bucket < untold_.size(); ++bucket) {
    if (untold_[bucket] > 0) rest_.push_back(bucket);
    untold_[bucket] = 0;
  }
  return rest_;
}

std::optional<std::size_t> ScheduledStep::ready(std::size_t layer) {
  const std::size_t bucket = bucket_of_[layer];
  SPARSESYNC_EXPECT(not_ready_[bucket], >, std::size_t{0});
  if (!is_last(not_ready_[bucket]) || schedule_.after_backward) return std::nullopt;
  submitted_[bucket] = 1;
  return bucket;
}

std::span<const std::size_t> ScheduledStep::end_backward() {
  rest_.clear();
  for (std::size_t bucket = 0; bucket < submitted_.size(); ++bucket) {
    if (submitted_[bucket] == 0) rest_.push_back(bucket);
  }
  begin();
  return rest_;
}

}  // namespace sparsesync
