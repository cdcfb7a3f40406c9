// Sums made in the order of kernels/lanes.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/lanes.h"

namespace sparsesync::cpu {

using Lanes = std::array<double, kLanes>;

inline double in_halves(Lanes& lanes) {
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes.front();
}

/// The sum of number(i) for the elements in [begin, end), the first of which goes to the first
/// lane.
template <typename Number>
double sum_in_lanes(Index begin, Index end, Number&& number) {
  Lanes lanes{};
  for (Index first = begin; first < end; first += kLanes) {
    const Index count = std::min(kLanes, end - first);
    for (Index i = 0; i < count; ++i) lanes[static_cast<std::size_t>(i)] += number(first + i);
  }
  return in_halves(lanes);
}

}  // namespace sparsesync::cpu
