// CPU body of the norms of chunks.
#include "kernels/topk/chunk_norms.h"

#include <algorithm>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/topk/lanes.h"
#include "kernels/topk/simd_f32.h"

namespace sparsesync::cpu {

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
