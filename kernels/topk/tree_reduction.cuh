// Tree reductions in the order of kernels/topk/reduction_order.h: one warp per segment, then one
// warp per sum. For kernel sources only.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/topk/reduction_order.h"

namespace sparsesync::cuda {

static_assert(kPartialSums == kWarp);

/// Divides consecutive numbers into sums, and each sum into segments.
struct Segments {
  Index count;   // total number of numbers
  Index of_sum;  // numbers per sum; the last sum may have fewer

  __host__ __device__ Index per_sum() const { return ceil_div(of_sum, kSegment); }
  __host__ __device__ Index sums() const { return ceil_div(count, of_sum); }
  /// Returns the number of segments of a sum.
  __device__ Index in_sum(Index sum) const {
    const Index left = count - sum * of_sum;
    return ceil_div(left < of_sum ? left : of_sum, kSegment);
  }
};

namespace detail {
/// Reduces the values of a warp. Only the first lane has the result.
__device__ inline double tree_reduce(double own) {
  for (int half = kWarp / 2; half > 0; half /= 2) own += __shfl_down_sync(kAllLanes, own, half);
  return own;
}

/// Sums segments, one warp per segment.
template <typename Number>
__global__ void add_segments(Segments segments, Number number, double* of_segments) {
  const Index lane = threadIdx.x % kWarp;
  const Index warps = thread_count() / kWarp;
  const Index all = segments.sums() * segments.per_sum();
  for (Index at = thread_number() / kWarp; at < all; at += warps) {
    const Index sum = at / segments.per_sum();
    const Index segment = at % segments.per_sum();
    if (segment >= segments.in_sum(sum)) continue;
    const Index begin = sum * segments.of_sum + segment * kSegment;
    Index end = (sum + 1) * segments.of_sum;
    if (end > begin + kSegment) end = begin + kSegment;
    if (end > segments.count) end = segments.count;
    double own = 0;
    Index i = begin + lane;
    // All loads of a batch are in flight before the first addition.
    constexpr int kBatch = 8;
    for (; i + (kBatch - 1) * kWarp < end; i += kBatch * kWarp) {
      double numbers[kBatch];
      for (int k = 0; k < kBatch; ++k) numbers[k] = number(i + k * kWarp);
      for (int k = 0; k < kBatch; ++k) own += numbers[k];
    }
    for (; i < end; i += kWarp) own += number(i);
    own = tree_reduce(own);
    if (lane == 0) of_segments[at] = own;
  }
}

/// Sums the segments of each sum, one warp per sum.
template <typename Put>
__global__ void add_sums(Segments segments, const double* of_segments, Put put) {
  const Index lane = threadIdx.x % kWarp;
  const Index warps = thread_count() / kWarp;
  for (Index sum = thread_number() / kWarp; sum < segments.sums(); sum += warps) {
    const double* const from = of_segments + sum * segments.per_sum();
    double own = 0;
    for (Index i = lane; i < segments.in_sum(sum); i += kWarp) own += from[i];
    own = tree_reduce(own);
    if (lane == 0) put(sum, own);
  }
}
}  // namespace detail

/// Computes sums of numbers. Does not synchronize the stream.
/// @param number  [=] __device__(Index i), which returns number i; not inside a generic lambda
/// @param put     [=] __device__(Index sum, double value), which stores a sum
template <typename Number, typename Put>
void sum_segments(const Context& context, const Segments& segments, Number number, Put put) {
  Scratch scratch(context);
  const Index all = segments.sums() * segments.per_sum();
  double* const of_segments = scratch.allocate<double>(all).data();
  launch<detail::add_segments<Number>>(context, blocks_for(context, all * kWarp), kBlock, segments,
                                       number, of_segments);
  launch<detail::add_sums<Put>>(context, blocks_for(context, segments.sums() * kWarp), kBlock,
                                segments, static_cast<const double*>(of_segments), put);
}

}  // namespace sparsesync::cuda
