// CUDA body of the sums of squares.
#include "kernels/squares.h"

#include "kernels/cuda/lanes.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

template <typename T>
void add(const Context& context, const std::byte* values, Index elements, double* sum) {
  sum_stretches(
      context, {elements, elements},
      [=] __device__(Index i) {
        const auto value = static_cast<double>(ValueTraits<T>::widen(load<T>(values, i)));
        return value * value;
      },
      [=] __device__(Index, double value) { *sum += value; });
}

}  // namespace

void add_squares(const Context& context, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  for_float_dtype(values.dtype,
                  [&]<typename T>(T) { add<T>(context, values.data, elements, sum); });
}

}  // namespace sparsesync::cuda
