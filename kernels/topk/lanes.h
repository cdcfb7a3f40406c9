// Sums made in the order of kernels/topk/reduction_order.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/topk/reduction_order.h"

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
