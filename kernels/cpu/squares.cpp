// CPU body of the sums of squares.
#include "kernels/squares.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/row.h"

namespace sparsesync::cpu {
namespace {

using Lanes = std::array<double, kSquareLanes>;

double in_halves(Lanes& lanes) {
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes.front();
}

/// Of the elements in [begin, end), a chunk at most.
template <typename T>
double of_chunk(const std::byte* values, Index begin, Index end) {
  Lanes lanes{};
  for (Index first = begin; first < end; first += kSquareLanes) {
    const Index count = std::min(kSquareLanes, end - first);
    for (Index i = 0; i < count; ++i) {
      const auto value = static_cast<double>(ValueTraits<T>::widen(load<T>(values, first + i)));
      lanes[static_cast<std::size_t>(i)] += value * value;
    }
  }
  return in_halves(lanes);
}

}  // namespace

void add_squares(const Context&, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    Lanes lanes{};
    for (Index begin = 0; begin < elements; begin += kSquareChunk) {
      lanes[static_cast<std::size_t>(begin / kSquareChunk % kSquareLanes)] +=
          of_chunk<T>(values.data, begin, std::min(elements, begin + kSquareChunk));
    }
    *sum += in_halves(lanes);
  });
}

}  // namespace sparsesync::cpu
