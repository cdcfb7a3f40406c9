// What of a schedule cannot hide: phases that cross while a worker waits, and why.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "engine/planner/schedule/schedule.h"

namespace sparsesync {

/// A phase of a bucket that crosses, in part or as a whole, while nothing is computed.
struct ExposedPhase {
  std::size_t bucket = 0;
  Phase phase = Phase::reduce;
  double seconds = 0;  // of a step, that it does so
};

/// Of steps that are all alike, the longest first.
std::vector<ExposedPhase> exposed_phases(std::span<const ScheduledLayer> layers,
                                         const BucketCosts& costs, const Schedule& schedule);

/// Why such a phase cannot hide: a few words.
std::string_view why_exposed(const Schedule& schedule, std::size_t bucket, Phase phase);

}  // namespace sparsesync
