// The step of a schedule: what to submit, when, in which order, and which results to wait for.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/planner/schedule/schedule.h"

namespace sparsesync {

/// Decides what a worker submits and waits for in each step of a schedule. C++ programs and
/// sparsesync.torch run their steps by it: they make the calls of Session that it names.
///
/// @code
///   session.set_order(step.order(ids), session.step());
///   // The forward pass:
///   step.begin_forward();
///   for each layer, the first one first:
///     wait for the results of step.bucket_of(layer), unless they were waited for;
///     compute; if (bucket = step.announced(layer)) announce it;
///   wait for all other results of the last step;
///   for (bucket : step.end_forward()) announce it;
///   // The backward pass:
///   for each layer, the last one first:
///     compute; if (bucket = step.ready(layer)) submit its reduce and its gather;
///   for (bucket : step.end_backward()) submit its reduce and its gather;
///   for (bucket : step.waits_after_backward(false)) wait for its results;
/// @endcode
class ScheduledStep {
 public:
  /// @param schedule  a whole one, of as many layers (check_schedule())
  ScheduledStep(Schedule schedule, std::size_t layers);

  const Schedule& schedule() const { return schedule_; }
  /// Returns the bucket that the layer is in.
  std::size_t bucket_of(std::size_t layer) const { return bucket_of_[layer]; }
  /// Returns whether the bucket announces its rows in the forward pass.
  bool announces(std::size_t bucket) const { return announces_[bucket] != 0; }
  /// Returns the order for Session::set_order().
  /// @param ids     of the schedule's buckets, in their order
  /// @param beside  of buckets that are no part of the schedule: their phases come behind the last
  ///                reduce of gradients
  std::vector<OrderEntry> order(std::span<const BucketId> ids,
                                std::span<const BucketId> beside = {}) const;
  /// Returns all buckets, in the order of their gathers: wait for several results in this order.
  std::span<const std::size_t> gathers() const { return gathers_; }

  // ---- The forward pass.

  /// Names the layers that announce rows in most steps. A bucket announces once these of its layers
  /// did; else in end_forward(). Before the first call, all layers do.
  /// @param layers  [layer]: nonzero if it announces
  void expect_announcements(std::span<const char> layers);
  /// Begins a forward pass, or begins it again after an error: nothing has been announced.
  void begin_forward();
  /// Counts a layer whose rows are known: once a step, for layers of which that is expected.
  /// @return the bucket to announce now, if any. Wait for its last results first
  std::optional<std::size_t> announced(std::size_t layer);
  /// Ends the forward pass.
  /// @return buckets to announce now, with the rows that are known
  std::span<const std::size_t> end_forward();

  // ---- The backward pass.

  /// Counts a layer whose gradient is ready: at most once a step.
  /// @return the bucket whose reduce and gather to submit now, if any
  std::optional<std::size_t> ready(std::size_t layer);
  /// Ends the backward pass. The next step begins.
  /// @return buckets whose reduce and gather to submit now, with the gradients that are ready
  std::span<const std::size_t> end_backward();
  /// Returns the buckets whose results to wait for behind end_backward(), in the order of their
  /// gathers: all of them, or none where gathers go on under the next forward pass.
  /// @param needs_all  whether all results are needed now in any case, such as for a review
  std::span<const std::size_t> waits_after_backward(bool needs_all) const;

 private:
  /// Counts a layer of a bucket.
  /// @return whether it was the last one
  static bool is_last(std::size_t& waiting) { return --waiting == 0; }

  Schedule schedule_;
  std::vector<std::size_t> bucket_of_;  // [layer]
  std::vector<char> announces_;         // [bucket]
  std::vector<std::size_t> gathers_;    // buckets
  std::vector<char> expected_;          // [layer]: whether its bucket waits for its rows
  std::vector<std::size_t> untold_;     // [bucket]: layers whose rows it waits for
  std::vector<char> announced_;         // [bucket]
  std::vector<std::size_t> not_ready_;  // [bucket]: layers whose gradients it waits for
  std::vector<char> submitted_;         // [bucket]
  std::vector<std::size_t> rest_;
};

}  // namespace sparsesync
