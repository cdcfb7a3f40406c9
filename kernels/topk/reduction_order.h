// The order that many numbers are added up in, so that the sum has the same bits on every device,
// unless it is a NaN.
#pragma once

#include "kernels/base/views.h"

namespace sparsesync {

/// Number i of some is added to sum i mod kLanes, in the order of the numbers; the sums are then
/// added up in halves: sum j + kLanes / 2 to sum j, and so on.
inline constexpr Index kLanes = 32;
/// So many numbers are added up by lanes, and so are the sums of all these stretches, however many.
inline constexpr Index kStretch = 4096;

}  // namespace sparsesync
