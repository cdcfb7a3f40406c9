// CPU body of the sums of squares.
#include "kernels/topk/squares.h"

#include "kernels/rows/row.h"
#include "kernels/topk/lanes.h"

namespace sparsesync::cpu {
namespace {

/// Of the elements in [begin, end), by lanes.
template <typename T>
double of_stretch(const std::byte* values, Index begin, Index end) {
  Lanes lanes{};
  for (Index first = begin; first < end; first += kLanes) {
    const Index count = std::min(kLanes, end - first);
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
    *sum += sum_of_stretches(
        elements, [&](Index begin, Index end) { return of_stretch<T>(values.data, begin, end); });
  });
}

}  // namespace sparsesync::cpu
