// CUDA implementations of the casts.
#include "kernels/rows/cast.h"

#include "kernels/cuda/packs.h"
#include "kernels/cuda/tile_scan.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

template <typename From, typename To>
struct Cast {
  __device__ To operator()(From value) const { return sparsesync::detail::converted<To>(value); }
};

/// Returns whether a number is finite. For infinities and NaNs, the difference from itself is NaN.
template <typename Sum>
__device__ bool is_finite(Sum value) {
  return value - value == Sum{0};
}

template <typename Elements, typename T>
__global__ void count_kernel(const std::byte* values, Index count, Index* found) {
  Index here = 0;
  Elements::for_each(count, [&](const auto& elements) {
    constexpr int kCount = std::remove_cvref_t<decltype(elements)>::kCount;
    T loaded[kCount];
    elements.load(values, loaded);
    for (int i = 0; i < kCount; ++i) {
      here += is_finite(ValueTraits<T>::widen(loaded[i])) ? 0 : 1;
    }
  });
  block_add(here, found);
}

}  // namespace

void cast(const Context& context, ConstMatrix from, Matrix to) {
  expect_same_shape(from, to);
  for_float_dtype(from.dtype, [&]<typename From>(From) {
    for_float_dtype(to.dtype, [&]<typename To>(To) {
      convert_each<From, To>(context, from.rows * from.width, from.data, to.data, Cast<From, To>{});
    });
  });
}

void count_non_finite(const Context& context, ConstMatrix values, Count count) {
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    const Index elements = values.rows * values.width;
    Index* const found = count.location();
    clear(context, found, sizeof(*found));
    for_elements<T>(address_of(values.data), [&]<typename Elements>(Elements) {
      launch<count_kernel<Elements, T>>(context, blocks_for(context, elements), kBlock, values.data,
                                        elements, found);
    });
  });
}

}  // namespace sparsesync::cuda
