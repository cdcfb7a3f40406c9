// CUDA body of the sums of squares.
#include "kernels/topk/squares.h"

#include "kernels/cuda/values.h"
#include "kernels/topk/lanes.cuh"

namespace sparsesync::cuda {
namespace {

template <typename T>
__device__ double square(T value) {
  const auto wide = static_cast<double>(ValueTraits<T>::widen(value));
  return wide * wide;
}

template <typename T>
void add(const Context& context, const std::byte* values, Index elements, double* sum) {
  const Stretches stretches{elements, elements};
  const auto put = [=] __device__(Index, double value) { *sum += value; };
  // Elements at an odd address are loaded byte by byte: more instructions than memory leaves time
  // for.
  if (address_of(values) % sizeof(T) == 0) {
    const T* const from = reinterpret_cast<const T*>(values);
    sum_stretches(
        context, stretches, [=] __device__(Index i) { return square(from[i]); }, put);
  } else {
    sum_stretches(
        context, stretches, [=] __device__(Index i) { return square(load<T>(values, i)); }, put);
  }
}

}  // namespace

void add_squares(const Context& context, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  for_float_dtype(values.dtype,
                  [&]<typename T>(T) { add<T>(context, values.data, elements, sum); });
}

}  // namespace sparsesync::cuda
