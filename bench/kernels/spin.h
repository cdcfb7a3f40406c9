// A kernel that keeps the device busy, so that the work to be timed is queued behind it.
#pragma once

#include "kernels/context.h"

namespace sparsesync::bench {

/// Occupies the stream for 100 us. On the emulated device it returns at once: time is not measured
/// there. Does not synchronize the stream.
void spin(const Context& context);

}  // namespace sparsesync::bench
