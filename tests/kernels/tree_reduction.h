// Reference implementation of tree reductions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparsesync {

/// Reduces one segment as kernels/topk/reduction_order.h describes: one partial sum after another.
inline double reduce_segment(const std::vector<double>& numbers) {
  constexpr std::size_t kPartialSums = 32;
  std::vector<double> sums(kPartialSums);
  for (std::size_t part = 0; part < kPartialSums; ++part) {
    for (std::size_t i = part; i < numbers.size(); i += kPartialSums) sums[part] += numbers[i];
  }
  while (sums.size() > 1) {
    const std::size_t half = sums.size() / 2;
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[half + i];
    sums.resize(half);
  }
  return sums.front();
}

/// Reduces any number of segments.
inline double reduce_in_order(const std::vector<double>& numbers) {
  constexpr std::size_t kInSegment = 4096;
  std::vector<double> sums;
  for (std::size_t begin = 0; begin < numbers.size(); begin += kInSegment) {
    const std::size_t end = std::min(numbers.size(), begin + kInSegment);
    sums.push_back(reduce_segment({numbers.data() + begin, numbers.data() + end}));
  }
  return reduce_segment(sums);
}

}  // namespace sparsesync
