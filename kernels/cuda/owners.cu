// CUDA bodies of find_places, order_by_owner and rows_of_owner.
#include "kernels/owners.h"

#include <algorithm>

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/compaction.h"
#include "kernels/cuda/group_search.h"
#include "kernels/error.h"

namespace sparsesync::cuda {
namespace {

/// Rows that a block finds together: they lie near each other in the set.
constexpr int kOfThread = 4;
constexpr Index kFoundTogether = Index{kOfThread} * kBlock;

/// Two warps find where the first and the last of a block's rows are, then each thread searches
/// between.
__global__ void find(const Index* set, Index set_size, const Index* rows, Index size, Index* places,
                     unsigned long long* found) {
  __shared__ Index bounds[2];
  const Index begin = static_cast<Index>(blockIdx.x) * kFoundTogether;
  const Index end = smaller(begin + kFoundTogether, size);
  if (threadIdx.x < 2 * kWarp) {
    const LaneGroup warp(5);
    const Index bound = warp.lower_bound(set, set_size, rows[warp.number() == 0 ? begin : end - 1]);
    if (warp.lane() == 0) bounds[warp.number()] = bound;
  }
  __syncthreads();
  const Index first = bounds[0];
  const Index span = bounds[1] - first;
  Index sought[kOfThread];
  for (int k = 0; k < kOfThread; ++k) {
    const Index i = begin + k * kBlock + threadIdx.x;
    sought[k] = i < end ? rows[i] : 0;
  }
  for (int k = 0; k < kOfThread; ++k) {
    const Index i = begin + k * kBlock + threadIdx.x;
    const Index place = first + lower_bound(set + first, span, sought[k]);
    const bool is_there = place < set_size && set[place] == sought[k];
    // A place that is none would be an address of nothing to who uses it.
    if (i < end) places[i] = is_there ? place : 0;
    const unsigned missing = __ballot_sync(kAllLanes, i < end && !is_there ? 1 : 0);
    const unsigned lane = threadIdx.x % kWarp;
    if (missing != 0 && lane == static_cast<unsigned>(__ffs(static_cast<int>(missing))) - 1) {
      atomicMin(found, static_cast<unsigned long long>(i));
    }
  }
  if (begin == 0 && threadIdx.x == 0) atomicMin(found, static_cast<unsigned long long>(size));
}

/// Whose row stands at a place; what was never found may be anywhere.
struct Owners {
  const std::int32_t* of_row;
  std::uint64_t rows;

  __device__ std::int32_t of(Index place) const {
    return static_cast<std::uint64_t>(place) < rows ? of_row[place] : 0;
  }
};

Owners owners_of(std::span<const std::int32_t> owners) {
  return {owners.data(), owners.size()};
}

}  // namespace

void find_places(const Context& context, std::span<const Index> set, std::span<const Index> rows,
                 std::span<Index> places, Count found) {
  SPARSESYNC_EXPECT(rows.size(), ==, places.size());
  if (rows.empty()) return clear(context, found.location(), sizeof(Index));
  // The largest number: what is missing, and in the end how many there are, lowers it.
  Queue& queue = queue_of(context);
  check(cudaMemsetAsync(found.location(), 0xFF, sizeof(Index), queue.handle()), "setting a count");
  queue.count_copy();
  launch(context, ceil_div(std::ssize(rows), kFoundTogether), kBlock, find, set.data(),
         std::ssize(set), rows.data(), std::ssize(rows), places.data(),
         reinterpret_cast<unsigned long long*>(found.location()));
}

void order_by_owner(const Context& context, std::span<const std::int32_t> owners,
                    std::span<const Index> places, std::span<Index> order, std::span<Index> begin) {
  SPARSESYNC_EXPECT(places.size(), ==, order.size());
  Scratch scratch(context);
  const auto size = std::ssize(places);
  const Index groups = std::ssize(begin) - 1;
  const auto place_bits = static_cast<unsigned>(bit_width_below(static_cast<std::uint64_t>(size)));
  const int owner_bits = std::max(bit_width_below(static_cast<std::uint64_t>(groups)), 1);
  const Owners owner = owners_of(owners);
  const Index* const place_of = places.data();
  // What is to be sorted stands where the result will; sorted, it lies in the scratch.
  auto* const unsorted = reinterpret_cast<std::uint64_t*>(order.data());
  for_each(context, size, [=] __device__(Index i) {
    const auto of_row = static_cast<Index>(owner.of(place_of[i]));
    const auto group = static_cast<std::uint64_t>(of_row >= 0 && of_row < groups ? of_row : 0);
    unsorted[i] = group << place_bits | static_cast<std::uint64_t>(i);
  });
  const std::uint64_t* const sorted =
      sort_words(context, scratch, {unsorted, order.size()}, static_cast<int>(place_bits),
                 static_cast<int>(place_bits) + owner_bits)
          .data();
  Index* const out = order.data();
  Index* const begin_of = begin.data();
  for_each(context, std::max(size, groups + 1), [=] __device__(Index i) {
    if (i < size) {
      out[i] = static_cast<Index>(sorted[i] & low_mask(static_cast<int>(place_bits)));
    }
    if (i <= groups) {
      begin_of[i] = lower_bound(sorted, size, static_cast<std::uint64_t>(i) << place_bits);
    }
  });
}

void rows_of_owner(const Context& context, std::span<const std::int32_t> owners,
                   std::span<const Index> rows, std::span<const Index> places, std::int32_t owner,
                   std::span<Index> out, Count count) {
  SPARSESYNC_EXPECT(rows.size(), ==, places.size());
  SPARSESYNC_EXPECT(rows.size(), <=, out.size());
  Scratch scratch(context);
  const Owners all = owners_of(owners);
  const Index* const row_of = rows.data();
  const Index* const place_of = places.data();
  keep_some(
      context, scratch, std::ssize(rows),
      [=] __device__(Index i, Index * row) {
        *row = row_of[i];
        return all.of(place_of[i]) == owner;
      },
      out.data(), count.location());
}

}  // namespace sparsesync::cuda
