// The order that many numbers are added up in, so that the sum has the same bits on every device.
#pragma once

#include "kernels/views.h"

namespace sparsesync {

/// Element i is added to sum i mod kLanes, in the order of the elements; the sums are then added up
/// in halves: the sum j + kLanes / 2 to the sum j, and so on.
inline constexpr Index kLanes = 256;

}  // namespace sparsesync
