// The oracle of sums whose order is told.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparsesync {

/// A stretch by the words of kernels/topk/reduction_order.h: lane by lane.
inline double sum_by_lanes(const std::vector<double>& numbers) {
  constexpr std::size_t kInLanes = 32;
  std::vector<double> sums(kInLanes);
  for (std::size_t lane = 0; lane < kInLanes; ++lane) {
    for (std::size_t i = lane; i < numbers.size(); i += kInLanes) sums[lane] += numbers[i];
  }
  while (sums.size() > 1) {
    const std::size_t half = sums.size() / 2;
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[half + i];
    sums.resize(half);
  }
  return sums.front();
}

/// The same of any number of them.
inline double sum_by_stretches(const std::vector<double>& numbers) {
  constexpr std::size_t kInStretch = 4096;
  std::vector<double> sums;
  for (std::size_t begin = 0; begin < numbers.size(); begin += kInStretch) {
    const std::size_t end = std::min(numbers.size(), begin + kInStretch);
    sums.push_back(sum_by_lanes({numbers.data() + begin, numbers.data() + end}));
  }
  return sum_by_lanes(sums);
}

}  // namespace sparsesync
