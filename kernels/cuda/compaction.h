// Stream compaction: keeps some elements of several lists, in their order, in one pass. For kernel
// sources only.
#pragma once

#include "kernels/cuda/job_table.h"
#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {

inline constexpr int kKeptOfThread = 8;
inline constexpr Index kKeepTile = Index{kKeptOfThread} * kBlock;

/// A list and the output of its compaction.
struct KeepWork {
  Index size;
  Index* out;
  Index* kept;  // receives the number of kept elements
  Index first_tile;

  Index tiles() const { return ceil_div(size, kKeepTile); }
};

namespace detail {
template <typename Keeps>
__global__ void keep_some(const __grid_constant__ JobTable<KeepWork> table, Tiles tiles,
                          Keeps keeps) {
  __shared__ Index shared;
  __shared__ Index sums[kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned lanes_before = (1U << lane) - 1;
  for (Index taken = tiles.next_tile(&shared); taken < table.tiles();
       taken = tiles.next_tile(&shared)) {
    const int number = table.number_of(taken);
    const KeepWork& work = table.work(number);
    const Index tile = taken - work.first_tile;
    // A warp has consecutive elements.
    const Index begin =
        tile * kKeepTile + (threadIdx.x / kWarp) * Index{kKeptOfThread * kWarp} + lane;
    Index values[kKeptOfThread];
    unsigned votes[kKeptOfThread];
    Index of_warp = 0;
    for (int k = 0; k < kKeptOfThread; ++k) {
      const Index i = begin + k * kWarp;
      values[k] = 0;
      votes[k] = __ballot_sync(kAllLanes, i < work.size && keeps(number, i, &values[k]) ? 1 : 0);
      of_warp += __popc(votes[k]);
    }
    Index of_tile = 0;
    const Index before_warp =
        block_exclusive_sum(lane == kWarp - 1 ? of_warp : Index{0}, sums, &of_tile);
    const Index before_tile = tiles.from(work.first_tile).before(tile, of_tile, &shared);
    Index at = before_tile + before_warp;
    for (int k = 0; k < kKeptOfThread; ++k) {
      if ((votes[k] >> lane & 1U) != 0) work.out[at + __popc(votes[k] & lanes_before)] = values[k];
      at += __popc(votes[k]);
    }
    if ((tile + 1) * kKeepTile >= work.size && threadIdx.x == 0) *work.kept = before_tile + of_tile;
  }
}
}  // namespace detail

/// Compacts each list: writes the kept elements in their order. Does not synchronize the stream.
/// @param table  non-empty lists, with work.tiles() tiles each
/// @param keeps  [=] __device__(int list, Index i, Index* number): returns whether element i of a
///               list is kept, and writes the output value to `number`
template <typename Keeps>
void keep_some(const Context& context, Scratch& scratch, const JobTable<KeepWork>& table,
               Keeps keeps) {
  launch<detail::keep_some<Keeps>>(context, blocks_for(context, table.tiles(), 1), kBlock, table,
                                   fresh_tiles(context, scratch, table.tiles()), keeps);
}

}  // namespace sparsesync::cuda
