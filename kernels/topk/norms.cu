// CUDA implementations of add_squares() and chunk_norms().
#include "kernels/topk/norms.h"

#include <cmath>

#include "kernels/cuda/values.h"
#include "kernels/topk/tree_reduction.cuh"

namespace sparsesync::cuda {

namespace {

template <typename T>
__device__ double square(T value) {
  const auto wide = static_cast<double>(ValueTraits<T>::widen(value));
  return wide * wide;
}

template <typename T>
void add(const Context& context, const std::byte* values, Index elements, double* sum) {
  const Segments segments{elements, elements};
  const auto put = [=] __device__(Index, double value) { *sum += value; };
  // Unaligned elements are loaded byte by byte, which makes instructions instead of memory the
  // bottleneck.
  if (address_of(values) % sizeof(T) == 0) {
    const T* const from = reinterpret_cast<const T*>(values);
    sum_segments(
        context, segments, [=] __device__(Index i) { return square(from[i]); }, put);
  } else {
    sum_segments(
        context, segments, [=] __device__(Index i) { return square(load<T>(values, i)); }, put);
  }
}

}  // namespace

void add_squares(const Context& context, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  for_float_dtype(values.dtype,
                  [&]<typename T>(T) { add<T>(context, values.data, elements, sum); });
}

void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms) {
  const auto size = std::ssize(values);
  sparsesync::detail::expect_chunks(values, chunk, norms);
  if (size == 0) return;
  const float* const from = values.data();
  double* const to = norms.data();
  sum_segments(
      context, {size, chunk},
      [=] __device__(Index i) { return static_cast<double>(std::fabs(from[i])); },
      [=] __device__(Index sum, double value) { to[sum] = value; });
}

}  // namespace sparsesync::cuda
