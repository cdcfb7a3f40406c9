// CPU implementation of sums of squares and norms of chunks.
#include "kernels/topk/norms.h"

#include <algorithm>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/rows/row.h"
#include "kernels/topk/reduction_order.h"
#include "kernels/topk/simd_f32.h"

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

void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms) {
  const auto size = std::ssize(values);
  detail::expect_chunks(values, chunk, norms);
  constexpr Index kGrain = Index{1} << 14;  // elements that a thread is worth waking for
  parallel_for(context, std::ssize(norms), ceil_div(kGrain, chunk), [&](IndexRange chunks) {
    for (Index i = chunks.begin; i < chunks.end; ++i) {
      const std::span<const float> own =
          part_of(values, {i * chunk, std::min(size, (i + 1) * chunk)});
      norms[static_cast<std::size_t>(i)] =
          sum_of_stretches(std::ssize(own), [&](Index begin, Index end) {
            return sum_absolute(part_of(own, {begin, end}));
          });
    }
  });
}

}  // namespace sparsesync::cpu
