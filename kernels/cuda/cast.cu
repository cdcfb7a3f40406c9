// CUDA bodies of the casts.
#include "kernels/cast.h"

#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

template <typename From, typename To>
void cast_as(const Context& context, ConstMatrix from, Matrix to) {
  using Wide = typename ValueTraits<To>::Sum;
  const std::byte* const source = from.data;
  std::byte* const target = to.data;
  for_each(context, from.rows * from.width, [=] __device__(Index i) {
    const auto wide = static_cast<Wide>(ValueTraits<From>::widen(load<From>(source, i)));
    store(target, i, ValueTraits<To>::narrow(wide));
  });
}

/// Of an infinity and of what is not a number the difference from itself is not a number.
template <typename Sum>
__device__ bool is_finite(Sum value) {
  return value - value == Sum{0};
}

template <typename T>
__global__ void count_kernel(const std::byte* values, Index count, unsigned long long* found) {
  unsigned long long here = 0;
  for (Index i = thread_number(); i < count; i += thread_count()) {
    here += is_finite(ValueTraits<T>::widen(load<T>(values, i))) ? 0 : 1;
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    here += __shfl_xor_sync(kAllLanes, here, distance);
  }
  if (threadIdx.x % kWarp == 0 && here != 0) atomicAdd(found, here);
}

}  // namespace

void cast(const Context& context, ConstMatrix from, Matrix to) {
  expect_same_shape(from, to);
  for_float_dtype(from.dtype, [&]<typename From>(From) {
    for_float_dtype(to.dtype, [&]<typename To>(To) { cast_as<From, To>(context, from, to); });
  });
}

void count_non_finite(const Context& context, ConstMatrix values, Count count) {
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    const Index elements = values.rows * values.width;
    auto* const found = reinterpret_cast<unsigned long long*>(count.location());
    clear(context, found, sizeof(*found));
    launch(context, blocks_for(context, elements), kBlock, count_kernel<T>, values.data, elements,
           found);
  });
}

}  // namespace sparsesync::cuda
