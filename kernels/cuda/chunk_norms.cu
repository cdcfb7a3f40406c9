// CUDA body of the norms of chunks.
#include "kernels/chunk_norms.h"

#include "kernels/cuda/lanes.h"
#include "kernels/error.h"

namespace sparsesync::cuda {
namespace {

/// A block for each chunk.
__global__ void add_chunk(const float* values, Index size, Index chunk, double* norms) {
  __shared__ double lanes[kLanes];
  const Index begin = static_cast<Index>(blockIdx.x) * chunk;
  const Index end = size < begin + chunk ? size : begin + chunk;
  double own = 0;
  for (Index i = begin + threadIdx.x; i < end; i += kLanes) {
    const auto value = static_cast<double>(values[i]);
    own += value < 0 ? -value : value;
  }
  const double sum = in_halves(own, lanes);
  if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}

}  // namespace

void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms) {
  const auto size = std::ssize(values);
  SPARSESYNC_EXPECT(chunk, >=, Index{1});
  SPARSESYNC_EXPECT(std::ssize(norms), ==, ceil_div(size, chunk));
  launch(context, std::ssize(norms), kLaneThreads, add_chunk, values.data(), size, chunk,
         norms.data());
}

}  // namespace sparsesync::cuda
