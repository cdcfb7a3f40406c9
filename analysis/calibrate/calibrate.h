// `sparsesync calibrate`: measures links and CPU costs, and fits the numbers of NETWORK.json.
#pragma once

#include <cstdint>
#include <functional>

#include "analysis/launcher.h"
#include "engine/planner/calibration/measure.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// Measures the links and CPU costs, and fits a model to them. Called in every process.
/// @param progress  called from the calling thread with the passes over a probe's message sizes
///                  that are done, and their total
/// @return the fitted model in the process that leads; an empty one elsewhere
/// @throws InputError if there is only one worker; Error if a worker failed, or nothing can be
///         fitted
NetworkFile calibrate(Workers& workers, ProbeOptions options,
                      const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace sparsesync
