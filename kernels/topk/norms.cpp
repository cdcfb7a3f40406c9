// CPU implementations of add_squares() and chunk_norms().
#include "kernels/topk/norms.h"

#include <algorithm>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/rows/row.h"
#include "kernels/topk/reduction_order.h"
#include "kernels/topk/simd_f32.h"

namespace sparsesync::cpu {

namespace {

/// Sums the squares of the elements in [begin, end) by a tree reduction.
template <typename T>
double of_segment(const std::byte* values, Index begin, Index end) {
  PartialSums sums{};
  for (Index first = begin; first < end; first += kPartialSums) {
    const Index count = std::min(kPartialSums, end - first);
    for (Index i = 0; i < count; ++i) {
      const auto value = static_cast<double>(ValueTraits<T>::widen(load<T>(values, first + i)));
      sums[static_cast<std::size_t>(i)] += value * value;
    }
  }
  return tree_reduce(sums);
}

}  // namespace

void add_squares(const Context&, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    *sum += reduce_in_order(
        elements, [&](Index begin, Index end) { return of_segment<T>(values.data, begin, end); });
  });
}

void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms) {
  const auto size = std::ssize(values);
  detail::expect_chunks(values, chunk, norms);
  constexpr Index kGrain = Index{1} << 14;  // elements that are worth waking a thread for
  parallel_for(context, std::ssize(norms), ceil_div(kGrain, chunk), [&](IndexRange chunks) {
    for (Index i = chunks.begin; i < chunks.end; ++i) {
      const std::span<const float> own =
          part_of(values, {i * chunk, std::min(size, (i + 1) * chunk)});
      norms[static_cast<std::size_t>(i)] =
          reduce_in_order(std::ssize(own), [&](Index begin, Index end) {
            return sum_absolute(part_of(own, {begin, end}));
          });
    }
  });
}

}  // namespace sparsesync::cpu
