// The link of a local network, as Python names it.
#pragma once

#include <optional>

#include "sparsesync/transports/local.h"

namespace sparsesync::python {

/// @param rate_bps  bits a second; nothing: not limited
/// @throws InputError if it is no rate, or no latency
LocalLink link_of(const std::optional<double>& rate_bps, double latency_s);

}  // namespace sparsesync::python
