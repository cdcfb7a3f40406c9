// The order that many numbers are added up in, so that the sum has the same bits on every device,
// unless it is a NaN.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/base/views.h"

namespace sparsesync {

/// Number i of some is added to sum i mod kLanes, in the order of the numbers; the sums are then
/// added up in halves: sum j + kLanes / 2 to sum j, and so on.
inline constexpr Index kLanes = 32;
/// So many numbers are added up by lanes, and so are the sums of all these stretches, however many.
inline constexpr Index kStretch = 4096;

}  // namespace sparsesync

namespace sparsesync::cpu {

using Lanes = std::array<double, kLanes>;

inline double in_halves(Lanes& lanes) {
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes.front();
}

/// The sum of `count` numbers.
/// @param sum_of  the sum by lanes of the numbers in [begin, end), a stretch at most
template <typename SumOf>
double sum_of_stretches(Index count, SumOf&& sum_of) {
  Lanes lanes{};
  for (Index stretch = 0; stretch * kStretch < count; ++stretch) {
    const Index begin = stretch * kStretch;
    lanes[static_cast<std::size_t>(stretch % kLanes)] +=
        sum_of(begin, std::min(begin + kStretch, count));
  }
  return in_halves(lanes);
}

}  // namespace sparsesync::cpu
