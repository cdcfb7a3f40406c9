// Prefix sums over a block, and over tiles in a single pass. Kernels that compact their input use
// them to find output positions. For kernel sources only.
#pragma once

#include <cstdint>
#include <cuda/atomic>

#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {

/// Computes the exclusive prefix sum over the threads of a block.
/// @param shared  kWarp + 1 numbers in shared memory; may be reused after the next __syncthreads()
/// @param total   receives the sum of all threads' values
/// @return the sum of the values of all threads before this one
template <typename T>
__device__ T block_exclusive_sum(T value, T* shared, T* total) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned warps = blockDim.x / kWarp;
  T inclusive = value;
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, inclusive, distance);
    if (lane >= distance) inclusive += before;
  }
  if (lane == kWarp - 1) shared[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    T of_warp = lane < warps ? shared[lane] : T{0};
    const T own = of_warp;
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
      const T before = __shfl_up_sync(kAllLanes, of_warp, distance);
      if (lane >= distance) of_warp += before;
    }
    if (lane < warps) shared[lane] = of_warp - own;
    if (lane == kWarp - 1) shared[kWarp] = of_warp;
  }
  __syncthreads();
  *total = shared[kWarp];
  return shared[warp] + inclusive - value;
}

/// Adds the sum of all threads' values to a number in memory, with one atomic operation. All
/// threads of the block call it.
__device__ inline void block_add(Index value, Index* sum) {
  __shared__ Index shared[kWarp + 1];
  Index total = 0;
  block_exclusive_sum(value, shared, &total);
  if (threadIdx.x == 0 && total != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(total));
  }
  __syncthreads();
}

/// A word that publishes a block's count to other blocks. It publishes nothing else, so relaxed
/// accesses suffice.
using SharedWord = ::cuda::atomic_ref<std::uint64_t, ::cuda::thread_scope_device>;
inline constexpr auto kRelaxed = ::cuda::memory_order_relaxed;

/// The tiles of a kernel's work, claimed in order by its blocks, with their counts. Blocks find the
/// sum over earlier tiles by decoupled look-back (Merrill and Garland, "Single-pass parallel prefix
/// scan with decoupled look-back", 2016). A view of device memory.
class Tiles {
 public:
  /// Returns the number of 64-bit words for `tiles` tiles. All must be 0 before the kernel starts.
  static Index words(Index tiles) { return tiles + 1; }

  explicit Tiles(std::span<std::uint64_t> words) : words_(words.data()) {}

  /// Returns the tiles from `first` as a separate scan. Do not call next_tile() on it.
  __device__ Tiles from(Index first) const { return Tiles(words_ + first); }

  /// Claims the next tile. All threads of the block call it.
  /// @param shared  a number in shared memory
  __device__ Index next_tile(Index* shared) const {
    if (threadIdx.x == 0) *shared = static_cast<Index>(atomicAdd(ticket(), 1ULL));
    __syncthreads();
    const Index tile = *shared;
    __syncthreads();
    return tile;
  }

  /// Returns the sum of the counts of all earlier tiles. All threads of the block call it, once per
  /// tile.
  /// @param count   count of this tile
  /// @param shared  a number in shared memory
  __device__ Index before(Index tile, Index count, Index* shared) const {
    if (threadIdx.x < kWarp) {
      const Index sum = look_back(tile, count);
      if (threadIdx.x == 0) *shared = sum;
    }
    __syncthreads();
    const Index sum = *shared;
    __syncthreads();
    return sum;
  }

 private:
  __device__ explicit Tiles(std::uint64_t* words) : words_(words) {}

  // State, in the lowest bits of a tile's word. 0: the tile has not counted yet.
  static constexpr std::uint64_t kOwn = 1;  // the tile's count
  static constexpr std::uint64_t kAll = 2;  // the tile's count plus those of all tiles before it
  static constexpr unsigned kStateBits = 2;

  __device__ unsigned long long* ticket() const {
    return reinterpret_cast<unsigned long long*>(words_);
  }
  __device__ SharedWord word_of(Index tile) const { return SharedWord(words_[1 + tile]); }
  __device__ void publish(Index tile, Index count, std::uint64_t state) const {
    word_of(tile).store(static_cast<std::uint64_t>(count) << kStateBits | state, kRelaxed);
  }

  /// Looks back with the first warp: 32 tiles at a time, nearest tiles first.
  __device__ Index look_back(Index tile, Index count) const {
    const auto lane = static_cast<Index>(threadIdx.x);
    if (tile == 0) {
      if (lane == 0) publish(0, count, kAll);
      return 0;
    }
    if (lane == 0) publish(tile, count, kOwn);
    Index sum = 0;
    for (Index nearest = tile - 1;; nearest -= kWarp) {
      const Index looked_at = nearest - lane;
      // There is nothing before the first tile. Its prefix counts as complete.
      std::uint64_t word = kAll;
      if (looked_at >= 0) {
        do {
          word = word_of(looked_at).load(kRelaxed);
        } while (word == 0);
      }
      const unsigned complete =
          __ballot_sync(kAllLanes, (word & low_mask(kStateBits)) == kAll ? 1 : 0);
      // Sum up to the nearest lane with a complete prefix, inclusive.
      const Index last = complete != 0 ? __ffs(static_cast<int>(complete)) - 1 : kWarp - 1;
      Index part = lane <= last ? static_cast<Index>(word >> kStateBits) : 0;
      for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        part += __shfl_xor_sync(kAllLanes, part, distance);
      }
      sum += part;
      if (complete != 0) break;
    }
    if (lane == 0) publish(tile, sum + count, kAll);
    return sum;
  }

  std::uint64_t* words_;
};

/// Creates tiles that no block has claimed yet. Does not synchronize the stream.
Tiles fresh_tiles(const Context& context, Scratch& scratch, Index tiles);

}  // namespace sparsesync::cuda
