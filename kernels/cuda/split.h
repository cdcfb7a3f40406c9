// A stable split of rows into groups, in one pass: computes the output positions for kernels that
// keep some of the rows that they read. For kernel sources only.
//
// A block claims a tile of rows. Each warp counts its rows of each group, and the block sums the
// counts. The block publishes one word per group and looks back at the words of earlier tiles. This
// is decoupled look-back (Merrill and Garland, "Single-pass parallel prefix scan with decoupled
// look-back", 2016).
//
// Cost of looking back: about 1.2 us pass before other blocks see the sum of a tile that has looked
// back. At 4.3 TB/s, 5.2 MB are read meanwhile: 40 tiles of 128 KiB. A tile reads the words of
// these tiles (20 KB for 64 groups, from L2). Tiles are therefore large, larger for more groups,
// and each lane has several loads in flight.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {

inline constexpr int kBlockWarps = kBlock / kWarp;

/// The published words of tiles, and the output of their sums.
struct TileSums {
  std::uint64_t* words;  // Next tile, then one word per tile and group; null for one tile.
  unsigned groups;       // In [1, kBlock].
  unsigned lane_bits;    // Log2 of the number of threads that look back for a group.
  Index room;            // Capacity of each group, in rows.
  Index* counts;         // Receives the number of rows of each group.
};

/// Padding before the words of the tiles, which aligns them to a cache line.
inline constexpr Index kWordsBefore = 16;

/// Returns the recommended size of a tile in bytes. Does not synchronize the stream.
/// @param bytes  total size of all tiles
inline Index tile_bytes_for(const Context& context, Index bytes, Index groups) {
  constexpr Index kSmallest = Index{1} << 14;
  constexpr Index kLargest = Index{1} << 17;
  // Tiles per multiprocessor; fewer would not keep it busy to the end.
  constexpr Index kOfProcessor = 16;
  constexpr Index kOfGroup = 1024;
  const Index even =
      round_up(bytes / (kOfProcessor * stream_of(context).multiprocessors()), kOfGroup);
  return std::clamp(even, std::clamp(groups * kOfGroup, kSmallest, kLargest), kLargest);
}

/// Creates the sums of tiles that no block has claimed yet. Does not synchronize the stream.
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

/// Returns the lanes of `among` that have the same number as this lane. All lanes call it.
/// @tparam bits  bits of a number
template <int bits>
__device__ unsigned peers_of(unsigned number, unsigned among) {
  for (int bit = 0; bit < bits; ++bit) {
    const bool own = (number & 1U << static_cast<unsigned>(bit)) != 0;
    among &= __ballot_sync(kAllLanes, own ? 1 : 0) ^ (own ? 0 : kAllLanes);
  }
  return among;
}

/// Splits one tile. Lives in shared memory. All threads of the block call each function, in the
/// order of declaration.
/// @tparam kMost  largest number of groups
template <int kMost>
class Split {
 public:
  /// Claims the next tile for this block.
  __device__ Index next_tile(const TileSums& sums) {
    for (int i = static_cast<int>(threadIdx.x); i < kBlockWarps * kMost; i += kBlock) {
      next_[i / kMost][i % kMost] = 0;
    }
    if (threadIdx.x == 0) {
      // Tiles are claimed in order, so a block that looks back waits only for blocks that are
      // running.
      auto* const ticket = reinterpret_cast<unsigned long long*>(sums.words);
      tile_ = ticket == nullptr ? 0 : static_cast<Index>(atomicAdd(ticket, 1ULL));
    }
    __syncthreads();
    return tile_;
  }

  /// Returns the counters of the calling thread's warp, one per group. The warp first counts its
  /// rows there. After scan_counts(), a counter is the position of the warp's next row of the group
  /// among all rows of the tile.
  __device__ unsigned* next() { return next_[threadIdx.x / kWarp]; }

  /// Orders the rows of the tile by group, and within a group by warp.
  /// @return number of rows
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

  /// Looks back at earlier tiles. Afterwards, to() and fits() are valid. The last tile writes the
  /// counts.
  __device__ void resolve(const TileSums& sums) {
    const unsigned group = threadIdx.x >> sums.lane_bits;
    const unsigned first_of_warp = (threadIdx.x & ~(kWarp - 1U)) >> sums.lane_bits;
    if (first_of_warp < sums.groups) {  // otherwise the warp has no group
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

  /// Returns whether a row fits into the group's capacity.
  /// @param at  position among all rows of the tile
  __device__ bool fits(unsigned group, unsigned at) const { return at < end_[group]; }
  /// Returns the output position of a row.
  __device__ Index to(unsigned group, unsigned at) const { return to_[group] + at; }

 private:
  // State, in the lowest bits of a word. 0: the tile has not counted yet.
  static constexpr std::uint64_t kOwn = 1;  // the tile's count
  static constexpr std::uint64_t kAll = 2;  // the tile's count plus those of all tiles before it
  static constexpr unsigned kStateBits = 2;
  static constexpr int kInFlight = 4;  // loads in flight per lane

  __device__ static SharedWord word_of(const TileSums& sums, Index tile, unsigned group) {
    return SharedWord(sums.words[kWordsBefore + tile * sums.groups + group]);
  }
  __device__ static void publish(const TileSums& sums, Index tile, unsigned group, Index count,
                                 std::uint64_t state) {
    word_of(sums, tile, group)
        .store(static_cast<std::uint64_t>(count) << kStateBits | state, kRelaxed);
  }

  /// Returns the number of rows of a group in all tiles before this one. The lanes that serve a
  /// group each read a different tile, nearest tiles first. All lanes of a warp call it.
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
        // There is nothing before the first tile. Its prefix counts as complete.
        words[i] = kAll;
        if (!done && tile >= 0) words[i] = word_of(sums, tile, group).load(kRelaxed);
      }
      for (int i = 0; i < kInFlight; ++i) {
        const Index tile = nearest - i * static_cast<Index>(lanes);
        while (!done && words[i] == 0) words[i] = word_of(sums, tile, group).load(kRelaxed);
        const bool complete = (words[i] & low_mask(kStateBits)) == kAll;
        const unsigned which = __ballot_sync(kAllLanes, complete ? 1 : 0) & of_group;
        // Sum up to the nearest lane with a complete prefix, inclusive.
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
