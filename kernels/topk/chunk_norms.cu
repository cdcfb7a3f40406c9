// CUDA body of the norms of chunks.
#include "kernels/topk/chunk_norms.h"

#include <cmath>

#include "kernels/topk/lanes.cuh"

namespace sparsesync::cuda {

void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms) {
  const auto size = std::ssize(values);
  sparsesync::detail::expect_chunks(values, chunk, norms);
  if (size == 0) return;
  const float* const from = values.data();
  double* const to = norms.data();
  sum_stretches(
      context, {size, chunk},
      [=] __device__(Index i) { return static_cast<double>(std::fabs(from[i])); },
      [=] __device__(Index sum, double value) { to[sum] = value; });
}

}  // namespace sparsesync::cuda
