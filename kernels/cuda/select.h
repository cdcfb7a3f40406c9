// Stream compaction with a custom selection: keeps some items, in their order, in one pass. For
// kernel sources only.
#pragma once

#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {

/// Items per tile of select().
template <int items>
inline constexpr Index kSelectTile = Index{items} * kBlock;

namespace detail {
template <int items, typename Selection>
__global__ void select(Index tile_count, Tiles tiles, Selection selection) {
  static_assert(items <= 64);
  __shared__ Index at;
  __shared__ Index sums[kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned lanes_before = (1U << lane) - 1;
  // Each warp has consecutive items of a tile, and each of its lanes every 32nd of them.
  const Index first = static_cast<Index>(threadIdx.x / kWarp) * items * kWarp + lane;
  for (Index tile = tiles.next_tile(&at); tile < tile_count; tile = tiles.next_tile(&at)) {
    const auto part = selection.part(tile);
    std::uint64_t kept = 0;  // bit i: the lane's item i is kept
    for (int i = 0; i < items; ++i) {
      const bool keeps = selection.keeps(part, first + i * kWarp);
      kept |= static_cast<std::uint64_t>(keeps ? 1 : 0) << static_cast<unsigned>(i);
    }
    Index count = 0;
    const Index before_thread =
        block_exclusive_sum(static_cast<Index>(__popcll(kept)), sums, &count);
    const Index before_tile = tiles.before(tile, count, &at);
    Index rank = before_tile + __shfl_sync(kAllLanes, before_thread, 0);
    for (int i = 0; i < items; ++i) {
      const bool keeps = (kept >> static_cast<unsigned>(i) & 1U) != 0;
      const unsigned warp_keeps = __ballot_sync(kAllLanes, keeps ? 1 : 0);
      if (keeps) {
        selection.put(part, first + i * kWarp, rank + __popc(warp_keeps & lanes_before));
      }
      rank += __popc(warp_keeps);
    }
    if (threadIdx.x == 0) selection.end(tile, before_tile + count);
  }
}
}  // namespace detail

/// Compacts tiles of kSelectTile<items> items each. Does not synchronize the stream.
/// @param tiles      `tile_count` fresh tiles (fresh_tiles())
/// @param selection  passed to the kernel by value. Its part(tile) returns the state of a tile,
///                   once per tile. Its keeps(part, item) returns whether to keep an item in [0,
///                   kSelectTile<items>), which may be past the end. Its put(part, item, rank)
///                   writes a kept item; `rank` counts the kept items before it. Its end(tile,
///                   kept) receives the number of items kept up to the end of the tile.
template <int items, typename Selection>
void select(const Context& context, Index tile_count, Tiles tiles, Selection selection) {
  launch<detail::select<items, Selection>>(context, blocks_for(context, tile_count, 1), kBlock,
                                           tile_count, tiles, selection);
}

}  // namespace sparsesync::cuda
