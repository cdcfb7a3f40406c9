// CUDA implementation of unite().
#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/compaction.h"
#include "kernels/cuda/lists.h"
#include "kernels/rows/aggregate.h"

namespace sparsesync::cuda {
namespace {

// ---- Direct addressing.

/// Sets bits of words. The word numbers increase with the lanes, as the indices of a set do, so one
/// lane acts for all lanes with the same word. All lanes of a warp call it.
__device__ void set_bits(std::uint32_t* words, Index word, std::uint32_t bits) {
  const unsigned lane = threadIdx.x % kWarp;
  const Index before = __shfl_up_sync(kAllLanes, word, 1);
  const bool leads = lane == 0 || before != word;
  const unsigned leaders = __ballot_sync(kAllLanes, leads ? 1 : 0);
  if (leaders != kAllLanes) {
    // Find the later lanes that have the same leader.
    const unsigned next = leaders & ~((2U << lane) - 1);
    const unsigned end =
        next == 0 ? kWarp : static_cast<unsigned>(__ffs(static_cast<int>(next))) - 1;
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
      const std::uint32_t more = __shfl_down_sync(kAllLanes, bits, distance);
      if (lane + distance < end) bits |= more;
    }
  }
  if (leads && bits != 0) atomicOr(words + word, bits);
}

void mark(const Context& context, IndexRange range, const Lists& sets, std::uint32_t* words) {
  const Index begin = range.begin;
  const auto size = static_cast<std::uint64_t>(range.size());
  for_each_of_lists(
      context, sets, [=] __device__(int /*set*/, Index /*place*/, Index index, bool inside) {
        const auto bit = static_cast<std::uint64_t>(index - begin);
        // Skip indices outside the range: their bits would be outside the words.
        const bool marks = inside && bit < size;
        set_bits(words, marks ? static_cast<Index>(bit / 32) : 0, marks ? 1U << (bit % 32) : 0U);
      });
}

/// Bits per tile: one word per thread.
constexpr Index kTileBits = Index{64} * kBlock;

/// Writes the positions of the set bits. `words` has as many words as the tiles.
__global__ void expand(const std::uint64_t* words, Index begin, Index tile_count, Tiles tiles,
                       Index* out, Index* count) {
  static_assert(kTileBits <= 1 << 16);
  // Positions in the tile. Staged so that neighbouring threads write neighbouring indices.
  __shared__ std::uint16_t places[kTileBits];
  __shared__ Index shared;
  __shared__ unsigned sums[kWarp + 1];
  for (Index tile = tiles.next_tile(&shared); tile < tile_count; tile = tiles.next_tile(&shared)) {
    std::uint64_t word = words[tile * kBlock + threadIdx.x];
    unsigned of_tile = 0;
    unsigned at = block_exclusive_sum(static_cast<unsigned>(__popcll(word)), sums, &of_tile);
    for (; word != 0; word &= word - 1) {
      const auto bit = static_cast<unsigned>(__ffsll(static_cast<long long>(word))) - 1;
      places[at++] = static_cast<std::uint16_t>(threadIdx.x * 64 + bit);
    }
    const Index before = tiles.before(tile, of_tile, &shared);  // also a barrier, like next_tile()
    const Index first = begin + tile * kTileBits;
    for (unsigned i = threadIdx.x; i < of_tile; i += kBlock) out[before + i] = first + places[i];
    if (tile == tile_count - 1 && threadIdx.x == 0) *count = before + of_tile;
  }
}

void unite_by_address(const Context& context, Scratch& scratch, IndexRange range, const Lists& sets,
                      Index* out, Index* count) {
  const Index tiles = ceil_div(range.size(), kTileBits);
  const Index words = tiles * kBlock;
  const std::span<std::uint64_t> memory =
      scratch.allocate<std::uint64_t>(words + Tiles::words(tiles));
  clear(context, memory.data(), memory.size_bytes());
  mark(context, range, sets, reinterpret_cast<std::uint32_t*>(memory.data()));
  launch<expand>(context, blocks_for(context, tiles, 1), kBlock, memory.data(), range.begin, tiles,
                 Tiles(memory.subspan(static_cast<std::size_t>(words))), out, count);
}

// ---- Merging.

void unite_by_merging(const Context& context, Scratch& scratch, IndexRange range, const Lists& sets,
                      Index total, Index* out, Index* count) {
  // `out` can hold all indices. Collect them there, because the sorted ones are in scratch memory.
  const std::span<std::uint64_t> all{reinterpret_cast<std::uint64_t*>(out),
                                     static_cast<std::size_t>(total)};
  std::uint64_t* const unsorted = all.data();
  const Index begin = range.begin;
  const Index last = range.size() - 1;
  for_each_of_lists(context, sets,
                    [=] __device__(int /*set*/, Index place, Index index, bool inside) {
                      const Index number = index - begin;
                      // Clamp indices outside the range.
                      if (!inside) return;
                      unsorted[place] = static_cast<std::uint64_t>(number < 0      ? 0
                                                                   : number > last ? last
                                                                                   : number);
                    });
  const int bits = std::max(bit_width_below(static_cast<std::uint64_t>(range.size())), 1);
  const std::uint64_t* const sorted = sort_words(context, scratch, all, 0, bits).data();
  JobTable<KeepWork> kept{};
  const KeepWork work{total, out, count, 0};
  kept.add(work, work.tiles());
  keep_some(context, scratch, kept, [=] __device__(int /*list*/, Index i, Index* index) {
    const std::uint64_t number = sorted[i];
    *index = begin + static_cast<Index>(number);
    return i == 0 || sorted[i - 1] != number;
  });
}

}  // namespace

void unite(const Context& context, IndexRange range, std::span<const std::span<const Index>> sets,
           std::span<Index> out, Count count, AggregateWorkspace& /*workspace*/) {
  Index total = 0;
  for (const std::span<const Index> set : sets) total += std::ssize(set);
  SPARSESYNC_EXPECT(std::ssize(out), >=, std::min(total, range.size()));
  if (total == 0 || range.size() == 0) return clear(context, count.location(), sizeof(Index));
  Scratch scratch(context);
  const Lists lists = upload_lists(context, scratch, sets);
  if (unites_by_address(range.size(), total)) {
    unite_by_address(context, scratch, range, lists, out.data(), count.location());
  } else {
    unite_by_merging(context, scratch, range, lists, total, out.data(), count.location());
  }
}

}  // namespace sparsesync::cuda
