// Sums made in the order of kernels/lanes.h, a thread for each lane. For the sources of the bodies
// alone.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/lanes.h"

namespace sparsesync::cuda {

/// Threads of a block that makes such a sum.
inline constexpr int kLaneThreads = static_cast<int>(kLanes);

/// What the block's threads have, added up in halves; of use to the first one.
/// @param lanes  shared, of no use afterwards
__device__ inline double in_halves(double own, double* lanes) {
  lanes[threadIdx.x] = own;
  for (int half = kLaneThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
  }
  return lanes[0];
}

}  // namespace sparsesync::cuda
