// A schedule: which layers' gradients cross together, and when each phase of theirs does. The same
// policies plan for the engine, which runs them, and for the simulator.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schemes/pattern.h"  // IWYU pragma: export

namespace sparsesync {

/// What a schedule knows of a layer: parameters whose gradients become ready together. Layers are
/// numbered from the first that the forward pass comes to; backward goes the other way.
struct ScheduledLayer {
  double forward_s = 0;
  double backward_s = 0;
  double bytes = 0;  // of the gradient as it lies in the pool
  int kind = 0;      // layers of different kinds never cross together
  // Its bucket tells in the forward pass which rows it may touch. The same for all of a kind.
  bool announces = false;
};

/// Layers that follow each other.
struct LayerRange {
  int first = 0;
  int last = 0;  // that one, too

  int size() const { return last - first + 1; }
  friend bool operator==(LayerRange, LayerRange) = default;
};

/// What a bucket of such layers takes to cross, of a link that nothing else uses.
struct BucketSeconds {
  double announce = 0;  // which rows it may touch; 0 where it does not tell
  double reduce = 0;
  double gather = 0;

  /// Of one phase.
  double of(Phase phase) const;
  /// Of both phases that move values.
  double values() const { return reduce + gather; }
};
/// The same range costs the same, and a range no less than a part of it.
using BucketCosts = std::function<BucketSeconds(LayerRange)>;

/// What is known when a schedule is to be made. A view.
struct ScheduleQuestion {
  std::span<const ScheduledLayer> layers;  // one at least
  const BucketCosts& costs;
  /// What a bucket is full with, for `lazy` and `dear`. Nothing: what is the best, as they find by
  /// themselves.
  std::optional<double> full_bytes = std::nullopt;
  /// The same of the first bucket of a step, where that is less: so that something is under way
  /// early. Only with `full_bytes`.
  std::optional<double> first_bytes = std::nullopt;
  /// Whether a forward pass can wait for one bucket after another: else `auto` has none do so.
  bool may_go_on_under_forward = true;
};

/// A phase of one of a schedule's buckets.
struct ScheduledPhase {
  std::size_t bucket = 0;
  Phase phase = Phase::reduce;
  friend bool operator==(ScheduledPhase, ScheduledPhase) = default;
};

/// What crosses in a step, and when.
struct Schedule {
  /// Each layer in one; in the order of backward, so the last layers' first.
  std::vector<LayerRange> buckets;
  /// Every phase of a step once, in the order in which they cross. A reduce waits for the gradients
  /// of its bucket.
  std::vector<ScheduledPhase> order;
  /// Reduces wait for the end of the backward pass.
  bool after_backward = false;
  /// Gathers go on under the next forward pass, where each layer waits for its own bucket alone;
  /// else the pass waits for all of them.
  bool under_forward = false;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// @throws InputError unless each of so many layers is in one bucket, in the order of backward, and
///         the order has both phases of each bucket once, its reduce first, and its announce, where
///         it has one, before that
void check_schedule(const Schedule& schedule, std::size_t layers);

/// A way to make schedules: a pure function.
struct SchedulePolicy {
  std::string_view name;
  std::string_view summary;  // one line
  Schedule (*plan)(const ScheduleQuestion& question);
};

/// All that exist; `auto`, which takes the best of the others, is the last one.
std::span<const SchedulePolicy> schedule_policies();
/// @throws InputError if there is none of that name; the text lists those that exist
const SchedulePolicy& schedule_policy_named(std::string_view name);

/// When the gradients of each layer are there, in seconds after the backward pass began. [layer]
std::vector<double> ready_seconds(std::span<const ScheduledLayer> layers);

/// Seconds of both passes together.
double compute_seconds(std::span<const ScheduledLayer> layers);

/// A schedule of these buckets: first all that announce do so, in the order of forward; then each
/// is gathered as soon as it is reduced.
/// @param buckets  in the order of backward
Schedule one_after_another(std::span<const ScheduledLayer> layers, std::vector<LayerRange> buckets);

/// The same, but that gathers go on under the next forward pass, in its order.
Schedule gathers_under_forward(std::span<const ScheduledLayer> layers,
                               std::vector<LayerRange> buckets);

}  // namespace sparsesync
