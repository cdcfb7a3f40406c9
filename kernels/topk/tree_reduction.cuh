// Sums made in the order of kernels/topk/reduction_order.h: a warp for each stretch, then one for
// all of them. For the sources of the bodies alone.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/topk/reduction_order.h"

namespace sparsesync::cuda {

static_assert(kLanes == kWarp);

/// The stretches of numbers that lie one after another, so many for each sum.
struct Stretches {
  Index count;   // numbers of all sums together
  Index of_sum;  // numbers of each; the last one may have fewer

  __host__ __device__ Index per_sum() const { return ceil_div(of_sum, kStretch); }
  __host__ __device__ Index sums() const { return ceil_div(count, of_sum); }
  /// How many of a sum there are.
  __device__ Index in_sum(Index sum) const {
    const Index left = count - sum * of_sum;
    return ceil_div(left < of_sum ? left : of_sum, kStretch);
  }
};

namespace detail {
/// What the lanes of a warp have, added up in halves; of use to the first one.
__device__ inline double in_halves(double own) {
  for (int half = kWarp / 2; half > 0; half /= 2) own += __shfl_down_sync(kAllLanes, own, half);
  return own;
}

/// A warp for each stretch.
template <typename Number>
__global__ void add_stretches(Stretches stretches, Number number, double* of_stretches) {
  const Index lane = threadIdx.x % kWarp;
  const Index warps = thread_count() / kWarp;
  const Index all = stretches.sums() * stretches.per_sum();
  for (Index at = thread_number() / kWarp; at < all; at += warps) {
    const Index sum = at / stretches.per_sum();
    const Index stretch = at % stretches.per_sum();
    if (stretch >= stretches.in_sum(sum)) continue;
    const Index begin = sum * stretches.of_sum + stretch * kStretch;
    Index end = (sum + 1) * stretches.of_sum;
    if (end > begin + kStretch) end = begin + kStretch;
    if (end > stretches.count) end = stretches.count;
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
    own = in_halves(own);
    if (lane == 0) of_stretches[at] = own;
  }
}

/// A warp for each sum.
template <typename Put>
__global__ void add_sums(Stretches stretches, const double* of_stretches, Put put) {
  const Index lane = threadIdx.x % kWarp;
  const Index warps = thread_count() / kWarp;
  for (Index sum = thread_number() / kWarp; sum < stretches.sums(); sum += warps) {
    const double* const from = of_stretches + sum * stretches.per_sum();
    double own = 0;
    for (Index i = lane; i < stretches.in_sum(sum); i += kWarp) own += from[i];
    own = in_halves(own);
    if (lane == 0) put(sum, own);
  }
}
}  // namespace detail

/// Makes sums of numbers. Does not synchronize the stream.
/// @param number  [=] __device__(Index i), the i-th of all, no generic lambda around it
/// @param put     [=] __device__(Index sum, double value)
template <typename Number, typename Put>
void sum_stretches(const Context& context, const Stretches& stretches, Number number, Put put) {
  Scratch scratch(context);
  const Index all = stretches.sums() * stretches.per_sum();
  double* const of_stretches = scratch.take<double>(all).data();
  launch<detail::add_stretches<Number>>(context, blocks_for(context, all * kWarp), kBlock,
                                        stretches, number, of_stretches);
  launch<detail::add_sums<Put>>(context, blocks_for(context, stretches.sums() * kWarp), kBlock,
                                stretches, static_cast<const double*>(of_stretches), put);
}

}  // namespace sparsesync::cuda
