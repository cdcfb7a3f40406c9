// Which layers' gradients cross together: merging, greedy and exact.
#pragma once

#include <optional>
#include <vector>

#include "engine/planner/schedule/policies.h"

namespace sparsesync {

/// Every layer by itself, in the order of backward.
std::vector<LayerRange> each_layer(std::span<const ScheduledLayer> layers);

/// As few buckets as there can be: of neighbours of one kind.
std::vector<LayerRange> merge_all(std::span<const ScheduledLayer> layers);

/// A bucket is complete with the layer that makes it `full_bytes` or more. (GradientFlow,
/// section 3.1: lazy all-reduce.)
/// @param first_bytes  the same of the first bucket, the last layers'; nothing: as of the others
std::vector<LayerRange> merge_until_full(std::span<const ScheduledLayer> layers, double full_bytes,
                                         std::optional<double> first_bytes = std::nullopt);

/// MG-WFBP's greedy merging (arXiv 1912.09268, Algorithm 1): from the last layer on a layer joins
/// those that wait for the link if it is ready before what it saves has passed: τb(l-1) + tb(l-1) -
/// τc(l) < a, where a, the start-up, is what two messages take more than one of both.
std::vector<LayerRange> merge_greedily(const ScheduleQuestion& question);

/// The merging with which the last bucket has crossed the soonest, whatever the costs:
/// F(i) = min over j > i of max(F(j), ready(i)) + T(i, j - 1), F of nothing = 0.
/// Takes up to L²/2 costs of buckets.
std::vector<LayerRange> merge_exactly(const ScheduleQuestion& question);

/// The merging with which a step takes the least, where reduces go on under backward and gathers,
/// in the order of the next forward pass, under that: at most 1 + `grain` times what could be
/// reached, where no bucket costs more than its parts. With r, g what a bucket's phases take,
/// rem(i) what is left of a forward pass that is at layer i:
///   F(i) = max(F(j), ready(i)) + r(i, j - 1)    when the last reduce ends,
///   H(i) = max(H(j), rem(i)) + g(i, j - 1)      what comes from then on,
/// and F(1) + H(1) is the step. Of all pairs (F, H) those are followed than which no other is
/// better in both, and that may end up better than the best size of buckets does.
std::vector<LayerRange> merge_for_overlap(const ScheduleQuestion& question, double grain = 1e-3);

/// Sizes of buckets from none to all layers together, each half as large again.
std::vector<double> sizes_to_try(std::span<const ScheduledLayer> layers);

}  // namespace sparsesync
