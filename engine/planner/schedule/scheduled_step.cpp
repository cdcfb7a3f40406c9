#include "sparsesync/schedule.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace sparsesync {

ScheduledStep::ScheduledStep(Schedule schedule, std::size_t layers)
    : schedule_(std::move(schedule)),
      bucket_of_(layers),
      announces_(schedule_.buckets.size()),
      expected_(layers, 1),
      unannounced_(schedule_.buckets.size()),
      announced_(schedule_.buckets.size()),
      not_ready_(schedule_.buckets.size()),
      submitted_(schedule_.buckets.size()) {
  for (std::size_t bucket = 0; bucket < schedule_.buckets.size(); ++bucket) {
    const LayerRange range = schedule_.buckets[bucket];
    for (int layer = range.first; layer <= range.last; ++layer) {
      bucket_of_[static_cast<std::size_t>(layer)] = bucket;
    }
    not_ready_[bucket] = static_cast<std::size_t>(range.size());
  }
  for (const ScheduledPhase& each : schedule_.order) {
    if (each.phase == Phase::announce) announces_[each.bucket] = 1;
    if (each.phase == Phase::gather) gathers_.push_back(each.bucket);
  }
  rest_.reserve(schedule_.buckets.size());
  begin_forward();
}

std::vector<OrderEntry> ScheduledStep::order(std::span<const BucketId> ids,
                                             std::span<const BucketId> beside) const {
  SPARSESYNC_EXPECT(ids.size(), ==, schedule_.buckets.size());
  std::size_t reduces = ids.size();
  std::vector<OrderEntry> order;
  for (const ScheduledPhase& each : schedule_.order) {
    order.push_back({ids[each.bucket], each.phase});
    if (each.phase != Phase::reduce || !is_last(reduces)) continue;
    for (const BucketId bucket : beside) {
      order.push_back({bucket, Phase::reduce});
      order.push_back({bucket, Phase::gather});
    }
  }
  return order;
}

// ---- The forward pass.

void ScheduledStep::expect_announcements(std::span<const char> layers) {
  SPARSESYNC_EXPECT(layers.size(), ==, expected_.size());
  std::ranges::copy(layers, expected_.begin());
  begin_forward();
}

void ScheduledStep::begin_forward() {
  std::ranges::fill(unannounced_, std::size_t{0});
  std::ranges::fill(announced_, char{0});
  for (std::size_t layer = 0; layer < expected_.size(); ++layer) {
    if (expected_[layer] != 0) ++unannounced_[bucket_of_[layer]];
  }
}

std::optional<std::size_t> ScheduledStep::announced(std::size_t layer) {
  const std::size_t bucket = bucket_of_[layer];
  if (!announces(bucket)) return std::nullopt;
  SPARSESYNC_EXPECT(unannounced_[bucket], >, std::size_t{0});
  if (!is_last(unannounced_[bucket])) return std::nullopt;
  announced_[bucket] = 1;
  return bucket;
}

std::span<const std::size_t> ScheduledStep::end_forward() {
  rest_.clear();
  for (std::size_t bucket = 0; bucket < announced_.size(); ++bucket) {
    if (!announces(bucket) || announced_[bucket] != 0) continue;
    rest_.push_back(bucket);
    announced_[bucket] = 1;
    unannounced_[bucket] = 0;
  }
  return rest_;
}

// ---- The backward pass.

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
    submitted_[bucket] = 0;
    not_ready_[bucket] = static_cast<std::size_t>(schedule_.buckets[bucket].size());
  }
  begin_forward();
  return rest_;
}

std::span<const std::size_t> ScheduledStep::waits_after_backward(bool needs_all) const {
  if (schedule_.under_forward && !needs_all) return {};
  return gathers_;
}

}  // namespace sparsesync
