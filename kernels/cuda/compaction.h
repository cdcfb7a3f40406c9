// Some of many elements, in their order, in one pass. For the sources of the bodies alone.
#pragma once

#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {

namespace detail {
inline constexpr int kKeptOfThread = 8;
inline constexpr Index kKeepTile = Index{kKeptOfThread} * kBlock;

template <typename Look>
__global__ void keep_some(Index size, Index tile_count, Tiles tiles, Look look, Index* out,
                          Index* kept) {
  __shared__ Index shared;
  __shared__ Index sums[kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned lanes_before = (1U << lane) - 1;
  for (Index tile = tiles.take(&shared); tile < tile_count; tile = tiles.take(&shared)) {
    // A warp has elements that follow each other.
    const Index begin =
        tile * kKeepTile + (threadIdx.x / kWarp) * Index{kKeptOfThread * kWarp} + lane;
    Index values[kKeptOfThread];
    unsigned votes[kKeptOfThread];
    Index of_warp = 0;
    for (int k = 0; k < kKeptOfThread; ++k) {
      const Index i = begin + k * kWarp;
      values[k] = 0;
      votes[k] = __ballot_sync(kAllLanes, i < size && look(i, &values[k]) ? 1 : 0);
      of_warp += __popc(votes[k]);
    }
    Index of_tile = 0;
    const Index before_warp =
        block_exclusive_sum(lane == kWarp - 1 ? of_warp : Index{0}, sums, &of_tile);
    const Index before_tile = tiles.before(tile, of_tile, &shared);
    Index at = before_tile + before_warp;
    for (int k = 0; k < kKeptOfThread; ++k) {
      if ((votes[k] >> lane & 1U) != 0) out[at + __popc(votes[k] & lanes_before)] = values[k];
      at += __popc(votes[k]);
    }
    if (tile == tile_count - 1 && threadIdx.x == 0) *kept = before_tile + of_tile;
  }
}
}  // namespace detail

/// Writes some of `size` numbers, in their order. Does not synchronize the stream.
/// @param look  [=] __device__(Index i, Index* number): whether the i-th is kept; it writes it
/// @param kept  receives how many were
template <typename Look>
void keep_some(const Context& context, Scratch& scratch, Index size, Look look, Index* out,
               Index* kept) {
  if (size == 0) return clear(context, kept, sizeof(Index));
  const Index tiles = ceil_div(size, detail::kKeepTile);
  launch(context, blocks_for(context, tiles, 1), kBlock, detail::keep_some<Look>, size, tiles,
         fresh_tiles(context, scratch, tiles), look, out, kept);
}

}  // namespace sparsesync::cuda
