// Searches by some lanes of a warp together. For the sources of the bodies alone.
#pragma once

#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {

/// std::min() for kernels.
__device__ inline Index smaller(Index a, Index b) {
  return a < b ? a : b;
}

/// 2^bits neighbouring lanes of a warp that do something together, beside the warp's other groups.
class LaneGroup {
 public:
  /// This thread's.
  __device__ explicit LaneGroup(unsigned bits)
      : bits_(bits), lane_(threadIdx.x & ((1U << bits) - 1)) {}

  __device__ unsigned lanes() const { return 1U << bits_; }
  /// Of this thread in its group.
  __device__ unsigned lane() const { return lane_; }
  /// Of this group in the block.
  __device__ unsigned number() const { return threadIdx.x >> bits_; }
  /// Groups of the block.
  __device__ unsigned count() const { return blockDim.x >> bits_; }

  /// How many of the group's lanes, from the first on, say yes. Called by all lanes of the warp.
  __device__ unsigned leading(bool yes) const {
    const unsigned noes = ~votes(yes);
    const unsigned first =
        noes == 0 ? kWarp : static_cast<unsigned>(__ffs(static_cast<int>(noes))) - 1;
    return first < lanes() ? first : lanes();
  }

  /// As lower_bound(), each group in its own elements. Called by all lanes of the warp.
  __device__ Index lower_bound(const Index* elements, Index size, Index bound) const {
    const unsigned shift = bits_ == 0 ? 1 : bits_;
    Index begin = 0;
    while (__any_sync(kAllLanes, size > 0 ? 1 : 0) != 0) {
      // Each lane looks at the last element of a step.
      const Index step = (size >> shift) + 1;
      const Index probe = (lane_ + 1) * step - 1;
      const bool below = probe < size && elements[begin + probe] < bound;
      const Index passed = leading(below) * step;
      begin += passed;
      size = smaller(step - 1, size - passed);
    }
    return begin;
  }

 private:
  /// Of the group's lanes, from bit 0 on.
  __device__ unsigned votes(bool yes) const {
    const unsigned first = threadIdx.x % kWarp - lane_;
    return __ballot_sync(kAllLanes, yes ? 1 : 0) >> first;
  }

  unsigned bits_;
  unsigned lane_;
};

}  // namespace sparsesync::cuda
