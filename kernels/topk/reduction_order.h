// The reduction order of long sums: a tree reduction that gives the same bits on every device,
// except for NaNs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/base/views.h"

namespace sparsesync {

/// Number of partial sums of a segment. Number i is added to partial sum i mod kPartialSums, in the
/// order of the numbers. A tree reduction then adds partial sum j + kPartialSums / 2 to partial sum
/// j, and so on.
inline constexpr Index kPartialSums = 32;
/// Numbers per segment. The sums of all segments are reduced in the same way as the numbers of one
/// segment.
inline constexpr Index kSegment = 4096;

}  // namespace sparsesync

namespace sparsesync::cpu {

using PartialSums = std::array<double, kPartialSums>;

/// Adds the upper half of the partial sums to the lower half, repeatedly, until one sum remains.
inline double tree_reduce(PartialSums& sums) {
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums.front();
}

/// Sums `count` numbers in the reduction order.
/// @param sum_of  returns the sum of the numbers in [begin, end), at most one segment, in that
///                order
template <typename SumOf>
double reduce_in_order(Index count, SumOf&& sum_of) {
  PartialSums sums{};
  for (Index segment = 0; segment * kSegment < count; ++segment) {
    const Index begin = segment * kSegment;
    sums[static_cast<std::size_t>(segment % kPartialSums)] +=
        sum_of(begin, std::min(begin + kSegment, count));
  }
  return tree_reduce(sums);
}

}  // namespace sparsesync::cpu
