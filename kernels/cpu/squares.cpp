// CPU body of the sums of squares.
#include "kernels/squares.h"

#include <algorithm>

#include "kernels/bits.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/row.h"

namespace sparsesync::cpu {

void add_squares(const Context&, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    const auto square = [&](Index i) {
      const auto value = static_cast<double>(ValueTraits<T>::widen(load<T>(values.data, i)));
      return value * value;
    };
    *sum += sum_in_lanes(0, ceil_div(elements, kSquareChunk), [&](Index chunk) {
      const Index begin = chunk * kSquareChunk;
      return sum_in_lanes(begin, std::min(elements, begin + kSquareChunk), square);
    });
  });
}

}  // namespace sparsesync::cpu
