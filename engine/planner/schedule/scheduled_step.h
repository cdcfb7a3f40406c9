// Where a step of a schedule stands: which buckets are complete, and may cross.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/planner/schedule/schedule.h"

namespace sparsesync {

/// The gradients of one step after another, as they become ready. Who asks it submits what it
/// names. Layers are those of the schedule.
class ScheduledStep {
 public:
  /// @param schedule  a whole one, of as many layers (check_schedule())
  ScheduledStep(Schedule schedule, std::size_t layers);

  const Schedule& schedule() const { return schedule_; }
  /// That the layer crosses in.
  std::size_t bucket_of(std::size_t layer) const { return bucket_of_[layer]; }
  /// Whether the bucket tells its rows in the forward pass.
  bool announces(std::size_t bucket) const { return announces_[bucket] != 0; }

  /// A layer tells its rows: once a step, if at all, before end_forward().
  /// @return the bucket that all layers of have done so now
  std::optional<std::size_t> announced(std::size_t layer);
  /// Buckets that announce and have not done so: now they are to.
  std::span<const std::size_t> end_forward();

  /// The gradient of a layer is ready: once a step, if at all, before end_backward().
  /// @return the bucket whose phases are to be submitted now
  std::optional<std::size_t> ready(std::size_t layer);
  /// Buckets whose phases are to be submitted now, whatever layers of theirs are not ready. The
  /// next step begins.
  std::span<const std::size_t> end_backward();

 private:
  /// Counts a layer of a bucket.
  /// @return whether it was the last one
  static bool is_last(std::size_t& waiting) { return --waiting == 0; }
  void begin();

  Schedule schedule_;
  std::vector<std::size_t> bucket_of_;  // [layer]
  std::vector<char> announces_;         // [bucket]
  std::vector<std::size_t> untold_;     // [bucket]: layers that it waits for
  std::vector<std::size_t> not_ready_;  // [bucket]: layers that it waits for
  std::vector<char> submitted_;         // [bucket]
  std::vector<std::size_t> rest_;
};

}  // namespace sparsesync
