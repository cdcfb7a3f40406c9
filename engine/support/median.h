// The median: what a few measured times are summed up by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparsesync {

/// The middle number; of an even count the mean of the middle two.
/// @pre there is a number at least, and none is a NaN
inline double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const std::size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}

}  // namespace sparsesync
