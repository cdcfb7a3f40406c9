// Schedule policies: each makes a schedule from the seconds of passes and of buckets. A session's
// planner and the simulator use the same policies.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sparsesync/schedule.h"  // IWYU pragma: export

namespace sparsesync {

/// Describes a layer to a policy. Layers are numbered in the order of the forward pass; the
/// backward pass visits them in reverse.
struct ScheduledLayer {
  double forward_s = 0;
  double backward_s = 0;
  double bytes = 0;  // Bytes of the gradient in memory.
  int kind = 0;      // Layers of different kinds never share a bucket.
  // Whether its bucket announces its rows in the forward pass. The same for all layers of a kind.
  bool announces = false;
};

/// Seconds of each phase of a bucket on a link that nothing else uses.
struct BucketSeconds {
  double announce = 0;  // 0 if the bucket does not announce
  double reduce = 0;
  double gather = 0;

  /// Returns the seconds of one phase.
  double of(Phase phase) const;
  /// Returns the seconds of both phases that send values.
  double values() const { return reduce + gather; }
};
/// Returns the cost of a bucket of these layers. A pure function. A range costs at least as much as
/// any part of it.
using BucketCosts = std::function<BucketSeconds(LayerRange)>;

/// Holds the inputs of a policy. A view.
struct ScheduleQuestion {
  std::span<const ScheduledLayer> layers;  // at least one
  const BucketCosts& costs;
  /// Bytes of a full bucket of `lazy` and `dear`. No value: they choose the fastest size.
  std::optional<double> full_bytes = std::nullopt;
  /// Bytes of a step's first bucket when full. A small one starts communication early. Only used
  /// with `full_bytes`, and at most that.
  std::optional<double> first_bytes = std::nullopt;
  /// Whether a forward pass can wait for one bucket after another. Otherwise `auto` runs no gathers
  /// during it.
  bool may_go_on_under_forward = true;
};

/// Names a policy: `plan` is a pure function.
struct SchedulePolicy {
  std::string_view name;
  std::string_view summary;  // one line
  Schedule (*plan)(const ScheduleQuestion& question);
};

/// Returns all policies. The last one is `auto`, which picks the fastest of the others.
std::span<const SchedulePolicy> schedule_policies();
/// Returns the policy of that name.
/// @throws InputError if there is none; the text lists those that exist
const SchedulePolicy& schedule_policy_named(std::string_view name);

/// Makes the schedule of `auto`. Defined in auto_schedule.cpp.
Schedule schedule_auto(const ScheduleQuestion& question);

/// Returns when the gradients of each layer are ready, in seconds after the backward pass began.
/// [layer]
std::vector<double> ready_seconds(std::span<const ScheduledLayer> layers);

/// Returns the seconds of both passes together.
double compute_seconds(std::span<const ScheduledLayer> layers);

/// Makes a schedule of these buckets. First come all announce phases, in the order of the forward
/// pass. Then each bucket's reduce is followed by its gather.
/// @param buckets  in the order of the backward pass
Schedule one_after_another(std::span<const ScheduledLayer> layers, std::vector<LayerRange> buckets);

/// Makes the same schedule, but with gathers during the next forward pass, in its order.
Schedule gathers_under_forward(std::span<const ScheduledLayer> layers,
                               std::vector<LayerRange> buckets);

}  // namespace sparsesync
