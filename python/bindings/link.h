// Conversion of Python's arguments to the link of a local network.
#pragma once

#include <optional>

#include "sparsesync/transports/local.h"

namespace sparsesync::python {

/// Returns the link of each worker.
/// @param rate_bps   bits/s; nothing: not limited
/// @param latency_s  seconds, 0 to 3600
/// @throws InputError if an argument is out of its range
LocalLink link_of(const std::optional<double>& rate_bps, double latency_s);

}  // namespace sparsesync::python
