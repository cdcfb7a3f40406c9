// `sparsesync calibrate`: measures links and processors, and fits what NETWORK.json holds.
#pragma once

#include <cstdint>
#include <functional>

#include "analysis/launcher.h"
#include "engine/planner/calibration/measure.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// All of it: probes and fits. Called in every process of the workers.
/// @param progress  called from the calling thread: passes over a probe's sizes done, and in all
/// @return what is known in the process that leads; elsewhere nothing is
/// @throws InputError if there is one worker alone, Error if a worker failed or nothing can be
///         fitted
NetworkFile calibrate(Workers& workers, ProbeOptions options,
                      const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace sparsesync
