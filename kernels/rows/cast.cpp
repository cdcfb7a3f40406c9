// CPU implementations of the casts.
#include "kernels/rows/cast.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/base/threads.h"
#include "kernels/rows/row.h"

namespace sparsesync::cpu {

void cast(const Context& context, ConstMatrix from, Matrix to) {
  SPARSESYNC_EXPECT(from.rows, ==, to.rows);
  SPARSESYNC_EXPECT(from.width, ==, to.width);
  for_float_dtype(from.dtype, [&]<typename From>(From) {
    for_float_dtype(to.dtype, [&]<typename To>(To) {
      parallel_for(context, from.rows * from.width, row_grain(sizeof(From)), [&](IndexRange range) {
        for (Index i = range.begin; i < range.end; ++i) {
          store(to.data, i, detail::converted<To>(load<From>(from.data, i)));
        }
      });
    });
  });
}

void count_non_finite(const Context&, ConstMatrix values, Count count) {
  constexpr Index kAtOnce = 4096;
  Index found = 0;
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    const Index elements = values.rows * values.width;
    for (Index begin = 0; begin < elements; begin += kAtOnce) {
      const Index end = std::min(elements, begin + kAtOnce);
      // Count in 32 bits, the width of an f32, so that the compiler vectorizes the loop.
      std::uint32_t here = 0;
      for (Index i = begin; i < end; ++i) {
        here += std::isfinite(ValueTraits<T>::widen(load<T>(values.data, i))) ? 0U : 1U;
      }
      found += here;
    }
  });
  *count.location() = found;
}

}  // namespace sparsesync::cpu
