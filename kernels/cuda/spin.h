// A kernel that keeps a stream busy, so that work to be timed is queued behind it. For benches.
#pragma once

#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

/// Occupies the queue's stream. Work that the host submits meanwhile then starts without gaps, and
/// two events around it time the work alone. Returns at once on the emulated device, which measures
/// no time. Not counted as a launch. Does not synchronize the stream.
/// @throws DeviceError if it cannot be launched
void spin(Queue& queue, int microseconds);

}  // namespace sparsesync::cuda
