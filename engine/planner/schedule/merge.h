// Merging of layers into buckets: greedy and exact algorithms.
#pragma once

#include <optional>
#include <vector>

#include "engine/planner/schedule/policies.h"

namespace sparsesync {

/// Returns a bucket for each layer, in the order of the backward pass.
std::vector<LayerRange> each_layer(std::span<const ScheduledLayer> layers);

/// Returns as few buckets as possible: consecutive layers of one kind share a bucket.
std::vector<LayerRange> merge_all(std::span<const ScheduledLayer> layers);

/// Adds layers to a bucket until it has at least `full_bytes` (GradientFlow, section 3.1: lazy
/// all-reduce).
/// @param first_bytes  the same for the first bucket, which has the last layers; no value: as for
///                     the others
std::vector<LayerRange> merge_until_full(std::span<const ScheduledLayer> layers, double full_bytes,
                                         std::optional<double> first_bytes = std::nullopt);

/// Merges by MG-WFBP's greedy algorithm (arXiv 1912.09268, Algorithm 1). It visits layers from the
/// last one to the first. A layer joins the bucket that waits for the link if it becomes ready
/// before the saved time has passed:
/// @code
///   τb(l-1) + tb(l-1) - τc(l) < a
/// @endcode
/// The start-up a is the time by which two messages take longer than one message with both.
std::vector<LayerRange> merge_greedily(const ScheduleQuestion& question);

/// Returns the merging whose last bucket ends earliest, for any costs:
/// @code
///   F(i) = min over j > i of max(F(j), ready(i)) + T(i, j - 1), F(no layers) = 0
/// @endcode
/// Evaluates up to L²/2 bucket costs for L layers.
std::vector<LayerRange> merge_exactly(const ScheduleQuestion& question);

/// Returns the merging with the fastest step if reduces run during the backward pass and gathers
/// during the next forward pass, in its order. The step is at most 1 + `grain` times the optimum,
/// if no bucket costs more than its parts.
///
/// A bucket's phases take r and g seconds. When the forward pass begins layer i, rem(i) seconds of
/// it remain:
/// @code
///   F(i) = max(F(j), ready(i)) + r(i, j - 1)    the end of the last reduce
///   H(i) = max(H(j), rem(i)) + g(i, j - 1)      the time from then to the end of the forward pass
/// @endcode
/// A step takes F(1) + H(1). The search keeps only Pareto-optimal pairs (F, H) that may beat the
/// best fixed bucket size.
std::vector<LayerRange> merge_for_overlap(const ScheduleQuestion& question, double grain = 1e-3);

/// Returns bucket sizes in bytes, from 0 to all layers together. Each size is 1.5 times the
/// previous one.
std::vector<double> sizes_to_try(std::span<const ScheduledLayer> layers);

}  // namespace sparsesync
