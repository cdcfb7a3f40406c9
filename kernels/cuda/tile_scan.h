// Sums over a block, and over the tiles before one in a single pass: how kernels that keep some of
// what they read know where to write it. For kernel sources only.
#pragma once

#include <cstdint>
#include <cuda/atomic>

#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {

/// What the threads of a block have before them.
/// @param shared  kWarp + 1 numbers of the block's shared memory; may be used again after the next
///                __syncthreads()
/// @param total   receives the sum of all threads' values
/// @return the sum of the values of the threads before this one
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

/// Adds the values of all threads of the block to a number in memory, by one atomic operation.
/// Called by all threads of the block.
__device__ inline void block_add(Index value, Index* sum) {
  __shared__ Index shared[kWarp + 1];
  Index total = 0;
  block_exclusive_sum(value, shared, &total);
  if (threadIdx.x == 0 && total != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(total));
  }
  __syncthreads();
}

/// A word by which a block publishes a count to the other blocks. Nothing else is published with
/// it, so its accesses order nothing.
using SharedWord = ::cuda::atomic_ref<std::uint64_t, ::cuda::thread_scope_device>;
inline constexpr auto kRelaxed = ::cuda::memory_order_relaxed;

/// Tiles of some work, in the order in which blocks take them up, and what each of them counts
/// (decoupled look-back: Merrill and Garland, "Single-pass parallel prefix scan with decoupled
/// look-back", 2016). A view of memory of the device.
class Tiles {
 public:
  /// Words of memory, all 0 before the kernel begins.
  static Index words(Index tiles) { return tiles + 1; }

  explicit Tiles(std::span<std::uint64_t> words) : words_(words.data()) {}

  /// The tiles from `first` on, as tiles of their own: next_tile() is not for them.
  __device__ Tiles from(Index first) const { return Tiles(words_ + first); }

  /// The next tile that nobody has taken up. Called by all threads of the block.
  /// @param shared  a number of the block's shared memory
  __device__ Index next_tile(Index* shared) const {
    if (threadIdx.x == 0) *shared = static_cast<Index>(atomicAdd(ticket(), 1ULL));
    __syncthreads();
    const Index tile = *shared;
    __syncthreads();
    return tile;
  }

  /// What all tiles before this one count. Called by all threads of the block, once for each tile.
  /// @param count   of this tile
  /// @param shared  a number of the block's shared memory
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

  // Of a tile's word the lowest bits; 0: it has not counted yet.
  static constexpr std::uint64_t kOwn = 1;  // its own count
  static constexpr std::uint64_t kAll = 2;  // its own and those of all before it
  static constexpr unsigned kStateBits = 2;

  __device__ unsigned long long* ticket() const {
    return reinterpret_cast<unsigned long long*>(words_);
  }
  __device__ SharedWord word_of(Index tile) const { return SharedWord(words_[1 + tile]); }
  __device__ void publish(Index tile, Index count, std::uint64_t state) const {
    word_of(tile).store(static_cast<std::uint64_t>(count) << kStateBits | state, kRelaxed);
  }

  /// The first warp looks at 32 tiles at a time, the nearest ones first.
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
      // Before the first tile there is nothing, and that is known.
      std::uint64_t word = kAll;
      if (looked_at >= 0) {
        do {
          word = word_of(looked_at).load(kRelaxed);
        } while (word == 0);
      }
      const unsigned complete =
          __ballot_sync(kAllLanes, (word & low_mask(kStateBits)) == kAll ? 1 : 0);
      // The nearest lane that knows all before it is the last one that counts.
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

/// Tiles that nobody has taken up yet. Does not synchronize the stream.
Tiles fresh_tiles(const Context& context, Scratch& scratch, Index tiles);

}  // namespace sparsesync::cuda
