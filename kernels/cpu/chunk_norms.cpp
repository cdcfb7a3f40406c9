// CPU body of the norms of chunks.
#include "kernels/chunk_norms.h"

#include <algorithm>

#include "kernels/bits.h"
#include "kernels/cpu/f32_passes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/threads.h"

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
