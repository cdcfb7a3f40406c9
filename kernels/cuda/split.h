// A stable split: how kernels that keep some of the rows that they read know where to write them,
// in one pass, group after group. For kernel sources only.
//
// A block takes up a tile of rows. Each of its warps counts its rows of each group; the block sums
// these up, tells the others by a word for each group, and looks back at the words of the tiles
// before it (decoupled look-back: Merrill and Garland, "Single-pass parallel prefix scan with
// decoupled look-back", 2016).
//
// What looking back costs: about 1.2 us pass until others see the sum of a tile that has looked
// back. At 4.3 TB/s 5.2 MB are read meanwhile: 40 tiles of 128 KiB, whose words a tile reads (20 KB
// for 64 groups, from L2). Hence tiles that are large, the larger the more groups there are, and
// several words in flight for each lane.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {

inline constexpr int kBlockWarps = kBlock / kWarp;

/// The words of tiles, and what their sums are for.
struct TileSums {
  std::uint64_t*
      words;           // the next tile; then tile after tile a word for each group. One tile: none
  unsigned groups;     // in [1, kBlock]
  unsigned lane_bits;  // 2^lane_bits threads look back for a group
  Index room;          // rows of each group that are written
  Index* counts;       // receives the rows of each group
};

/// Words before those of the tiles, so that these begin a line.
inline constexpr Index kWordsBefore = 16;

/// Bytes that a tile should have. Does not synchronize the stream.
/// @param bytes  of all tiles together
inline Index tile_bytes_for(const Context& context, Index bytes, Index groups) {
  constexpr Index kSmallest = Index{1} << 14;
  constexpr Index kLargest = Index{1} << 17;
  constexpr Index kOfProcessor = 16;  // tiles: fewer would not keep it busy to the end
  constexpr Index kOfGroup = 1024;
  const Index even =
      round_up(bytes / (kOfProcessor * stream_of(context).multiprocessors()), kOfGroup);
  return std::clamp(even, std::clamp(groups * kOfGroup, kSmallest, kLargest), kLargest);
}

/// Of tiles that nobody has taken up yet. Does not synchronize the stream.
inline TileSums fresh_tile_sums(const Context& context, Scratch& scratch, Index tiles, Index groups,
                                Index room, Index* counts) {
  TileSums sums{nullptr, static_cast<unsigned>(groups), 0, room, counts};
  while (sums.lane_bits < 5 && groups << (sums.lane_bits + 1) <= kBlock) ++sums.lane_bits;
  if (tiles > 1) {
    const auto words = scratch.allocate<std::uint64_t>(kWordsBefore + tiles * groups);
    clear(context, words.data(), words.size_bytes());
    sums.words = words.data();
  }
  return sums;
}

/// The lanes of `among` whose number is this lane's. Called by all lanes.
/// @tparam bits  of a number
template <int bits>
__device__ unsigned peers_of(unsigned number, unsigned among) {
  for (int bit = 0; bit < bits; ++bit) {
    const bool own = (number & 1U << static_cast<unsigned>(bit)) != 0;
    among &= __ballot_sync(kAllLanes, own ? 1 : 0) ^ (own ? 0 : kAllLanes);
  }
  return among;
}

/// A tile's share of a split. In shared memory; each function is called by all threads of the
/// block, in this order.
/// @tparam kMost  groups at most
template <int kMost>
class Split {
 public:
  /// The tile that this block takes up.
  __device__ Index next_tile(const TileSums& sums) {
    for (int i = static_cast<int>(threadIdx.x); i < kBlockWarps * kMost; i += kBlock) {
      next_[i / kMost][i % kMost] = 0;
    }
    if (threadIdx.x == 0) {
      // Taken up in this order, so that whoever looks back waits for blocks that run.
      auto* const ticket = reinterpret_cast<unsigned long long*>(sums.words);
      tile_ = ticket == nullptr ? 0 : static_cast<Index>(atomicAdd(ticket, 1ULL));
    }
    __syncthreads();
    return tile_;
  }

  /// Of the calling thread's warp, for each group: first how many rows it has, for the warp to
  /// count; after scan_counts(), where its next one stands among all rows of the tile.
  __device__ unsigned* next() { return next_[threadIdx.x / kWarp]; }

  /// Orders the groups of the tile one after another, in each the rows of the first warp first.
  /// @return how many rows there are
  __device__ unsigned scan_counts(const TileSums& sums) {
    __syncthreads();
    const unsigned group = threadIdx.x;
    unsigned count = 0;
    if (group < sums.groups) {
      for (int warp = 0; warp < kBlockWarps; ++warp) count += next_[warp][group];
      if (sums.words != nullptr) publish(sums, tile_, group, count, tile_ == 0 ? kAll : kOwn);
    }
    unsigned all = 0;
    unsigned at = block_exclusive_sum(count, scan_, &all);
    if (group < sums.groups) {
      begin_[group] = at;
      for (int warp = 0; warp < kBlockWarps; ++warp) {
        const unsigned of_warp = next_[warp][group];
        next_[warp][group] = at;
        at += of_warp;
      }
      end_[group] = at;
    }
    __syncthreads();
    return all;
  }

  /// Looks back: from here on to() and fits() are known. The last tile writes the counts.
  __device__ void resolve(const TileSums& sums) {
    const unsigned group = threadIdx.x >> sums.lane_bits;
    const unsigned first_of_warp = (threadIdx.x & ~(kWarp - 1U)) >> sums.lane_bits;
    if (first_of_warp < sums.groups) {  // or else nothing is this warp's
      const bool there = group < sums.groups;
      const Index before = look_back(sums, there ? group : 0, there);
      if (there && (threadIdx.x & ((1U << sums.lane_bits) - 1)) == 0) {
        const unsigned begin = begin_[group];
        const auto count = static_cast<Index>(end_[group] - begin);
        if (sums.words != nullptr && tile_ > 0) publish(sums, tile_, group, before + count, kAll);
        if (tile_ + 1 == gridDim.x) sums.counts[group] = before + count;
        const Index left = sums.room - before;
        to_[group] = group * sums.room + before - begin;
        end_[group] = begin + static_cast<unsigned>(left < 0 ? 0 : left < count ? left : count);
      }
    }
    __syncthreads();
  }

  /// Whether there is room for a row.
  /// @param at  its place among all rows of the tile
  __device__ bool fits(unsigned group, unsigned at) const { return at < end_[group]; }
  /// Its place in the result.
  __device__ Index to(unsigned group, unsigned at) const { return to_[group] + at; }

 private:
  // Of a word the lowest bits; 0: the tile has not counted yet.
  static constexpr std::uint64_t kOwn = 1;  // its own count
  static constexpr std::uint64_t kAll = 2;  // its own and those of all before it
  static constexpr unsigned kStateBits = 2;
  static constexpr int kInFlight = 4;  // words that a lane waits for together

  __device__ static SharedWord word_of(const TileSums& sums, Index tile, unsigned group) {
    return SharedWord(sums.words[kWordsBefore + tile * sums.groups + group]);
  }
  __device__ static void publish(const TileSums& sums, Index tile, unsigned group, Index count,
                                 std::uint64_t state) {
    word_of(sums, tile, group)
        .store(static_cast<std::uint64_t>(count) << kStateBits | state, kRelaxed);
  }

  /// What all tiles before count of a group. The lanes of a group look at as many tiles at a time,
  /// the nearest ones first. Called by all lanes of a warp.
  __device__ Index look_back(const TileSums& sums, unsigned group, bool there) const {
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned lanes = 1U << sums.lane_bits;
    const unsigned own = lane & (lanes - 1);
    const unsigned of_group = static_cast<unsigned>(low_mask(static_cast<int>(lanes)))
                              << (lane - own);
    Index sum = 0;
    bool done = !there || tile_ == 0;
    for (Index nearest = tile_ - 1 - own; __any_sync(kAllLanes, done ? 0 : 1) != 0;
         nearest -= kInFlight * static_cast<Index>(lanes)) {
      std::uint64_t words[kInFlight];
      for (int i = 0; i < kInFlight; ++i) {
        const Index tile = nearest - i * static_cast<Index>(lanes);
        // Before the first tile there is nothing, and that is known.
        words[i] = kAll;
        if (!done && tile >= 0) words[i] = word_of(sums, tile, group).load(kRelaxed);
      }
      for (int i = 0; i < kInFlight; ++i) {
        const Index tile = nearest - i * static_cast<Index>(lanes);
        while (!done && words[i] == 0) words[i] = word_of(sums, tile, group).load(kRelaxed);
        const bool complete = (words[i] & low_mask(kStateBits)) == kAll;
        const unsigned which = __ballot_sync(kAllLanes, complete ? 1 : 0) & of_group;
        // The nearest lane that knows all before it is the last one that counts.
        const unsigned counted = which != 0 ? which ^ (which - 1) : kAllLanes;
        if (!done && (counted >> lane & 1U) != 0) sum += static_cast<Index>(words[i] >> kStateBits);
        done = done || which != 0;
      }
    }
    for (int distance = static_cast<int>(lanes) / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    return sum;
  }

  Index tile_;
  Index to_[kMost];
  unsigned begin_[kMost];
  unsigned end_[kMost];
  unsigned next_[kBlockWarps][kMost];
  unsigned scan_[kWarp + 1];
};

}  // namespace sparsesync::cuda
