// CUDA body of the sums of squares.
#include "kernels/squares.h"

#include "kernels/cuda/lanes.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

/// A block for each chunk.
template <typename T>
__global__ void square_chunks(const std::byte* values, Index elements, double* of_chunks) {
  __shared__ double lanes[kLanes];
  const Index begin = static_cast<Index>(blockIdx.x) * kSquareChunk;
  const Index end = elements < begin + kSquareChunk ? elements : begin + kSquareChunk;
  double own = 0;
  for (Index i = begin + threadIdx.x; i < end; i += kLanes) {
    const auto value = static_cast<double>(ValueTraits<T>::widen(load<T>(values, i)));
    own += value * value;
  }
  const double sum = in_halves(own, lanes);
  if (threadIdx.x == 0) of_chunks[blockIdx.x] = sum;
}

/// One block.
__global__ void add_chunks(const double* of_chunks, Index chunks, double* sum) {
  __shared__ double lanes[kLanes];
  double own = 0;
  for (Index i = threadIdx.x; i < chunks; i += kLanes) own += of_chunks[i];
  const double whole = in_halves(own, lanes);
  if (threadIdx.x == 0) *sum += whole;
}

}  // namespace

void add_squares(const Context& context, ConstMatrix values, double* sum) {
  const Index elements = values.rows * values.width;
  if (elements == 0) return;
  const Index chunks = ceil_div<Index>(elements, kSquareChunk);
  Scratch scratch(context);
  const std::span<double> of_chunks = scratch.take<double>(chunks);
  for_float_dtype(values.dtype, [&]<typename T>(T) {
    launch(context, chunks, kLaneThreads, square_chunks<T>, values.data, elements,
           of_chunks.data());
  });
  launch(context, 1, kLaneThreads, add_chunks, static_cast<const double*>(of_chunks.data()), chunks,
         sum);
}

}  // namespace sparsesync::cuda
