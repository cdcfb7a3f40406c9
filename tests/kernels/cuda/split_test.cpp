// ctest: DEVICES RACES
// The decoupled look-back of kernels/cuda/split.h.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/split.h"
#include "tests/kernels/kernel_test.h"
#include "tests/support/random.h"

namespace sparsesync::cuda {
namespace {

using testing::Random;

using SplitTest = KernelTest;

struct Found {
  Index tile;
  unsigned all;
};

/// Splits one tile. Warp w has counts[w * groups + group] rows.
__global__ void split_one(TileSums sums, const unsigned* counts, Found* found, unsigned* next,
                          Index* to, unsigned* fitting) {
  __shared__ Split<256> split;
  const Index tile = split.next_tile(sums);
  const unsigned warp = threadIdx.x / kWarp;
  for (unsigned i = threadIdx.x % kWarp; i < sums.groups; i += kWarp) {
    split.next()[i] = counts[warp * sums.groups + i];
  }
  const unsigned all = split.scan_counts(sums);
  for (unsigned i = threadIdx.x % kWarp; i < sums.groups; i += kWarp) {
    next[warp * sums.groups + i] = split.next()[i];
  }
  split.resolve(sums);
  if (threadIdx.x == 0) {
    *found = {tile, all};
    for (unsigned group = 0; group < sums.groups; ++group) {
      to[group] = split.to(group, 0);
      fitting[group] = 0;
      for (unsigned at = 0; at < all; ++at) fitting[group] += split.fits(group, at) ? 1 : 0;
    }
  }
}

TEST_F(SplitTest, LooksBackAtTilesInEveryState) {
  Random random(testing::seed());
  for (const Index groups : {1, 2, 3, 5, 8, 9, 16, 40, 64, 100, 256}) {
    for (const Index tile : {0, 1, 2, 31, 32, 33, 127, 128, 129, 500}) {
      SCOPED_TRACE(::testing::Message() << groups << " groups, tile " << tile);
      const auto many = static_cast<std::size_t>(groups);
      const Index room = random.below(1000);
      std::vector<Index> counts(many, -1);
      Scratch scratch(context_);
      const TileSums sums =
          fresh_tile_sums(context_, scratch, tile + 2, groups, room, counts.data());
      context_.device_stream()->synchronize();
      // Each earlier tile has published either its count or its complete prefix.
      std::vector<Index> before(many);
      const Index last_complete = random.below(tile + 1);
      sums.words[0] = static_cast<std::uint64_t>(tile);
      for (Index i = 0; i < tile; ++i) {
        for (std::size_t group = 0; group < many; ++group) {
          const Index count = random.below(3) * (Index{1} << 31);
          before[group] += count;
          const bool complete = i <= last_complete && random.below(i == 0 ? 1 : 8) == 0;
          sums.words[kWordsBefore + i * groups + static_cast<Index>(group)] =
              static_cast<std::uint64_t>(complete ? before[group] : count) << 2U |
              (complete ? 2U : 1U);
        }
      }
      std::vector<unsigned> of_warps(many * kBlockWarps);
      for (unsigned& count : of_warps) count = static_cast<unsigned>(random.below(4));
      std::vector<Found> found(1);
      std::vector<unsigned> next(of_warps.size());
      std::vector<Index> to(many);
      std::vector<unsigned> fitting(many);
      launch<split_one>(context_, 1, kBlock, sums, of_warps.data(), found.data(), next.data(),
                        to.data(), fitting.data());
      context_.device_stream()->synchronize();
      ASSERT_EQ(found[0].tile, tile);
      unsigned at = 0;
      for (std::size_t group = 0; group < many; ++group) {
        const unsigned begin = at;
        for (std::size_t warp = 0; warp < kBlockWarps; ++warp) {
          ASSERT_EQ(next[warp * many + group], at);
          at += of_warps[warp * many + group];
        }
        const Index own = at - begin;
        const Index left = std::max<Index>(room - before[group], 0);
        ASSERT_EQ(to[group], static_cast<Index>(group) * room + before[group] - begin);
        // The number of rows of the tile, counted without groups, that precede the end of the
        // group's capacity. fits() is called for this group only.
        ASSERT_EQ(fitting[group], begin + std::min(left, own));
        ASSERT_EQ(sums.words[kWordsBefore + tile * groups + static_cast<Index>(group)],
                  static_cast<std::uint64_t>(before[group] + own) << 2U | 2U);
        ASSERT_EQ(counts[group], tile == 0 ? own : -1) << "only the last tile writes counts";
      }
      ASSERT_EQ(found[0].all, at);
    }
  }
}

constexpr Index kTiles = kBlocksAtOnce;

/// Tile t has t + g + 1 rows of group g. The first tile publishes its counts only after all others
/// have published counts without a prefix. They cannot finish looking back earlier.
__global__ void split_late_first(TileSums sums, std::uint8_t* waited, Index* to) {
  __shared__ Split<256> split;
  const Index tile = split.next_tile(sums);
  if (threadIdx.x < sums.groups) {
    split.next()[threadIdx.x] = static_cast<unsigned>(tile) + threadIdx.x + 1;
  }
  if (tile == 0 && threadIdx.x == 0) {
    for (Index i = sums.groups; i < kTiles * sums.groups; ++i) {
      const SharedWord word(sums.words[kWordsBefore + i]);
      const bool published = wait_in_kernel([&] { return word.load(kRelaxed) != 0; });
      waited[i] = published && word.load(kRelaxed) % 4 == 1 ? 1 : 0;
      if (!published) break;
    }
  }
  split.scan_counts(sums);
  split.resolve(sums);
  if (threadIdx.x < sums.groups) to[tile * sums.groups + threadIdx.x] = split.to(threadIdx.x, 0);
}

TEST_F(SplitTest, WaitsForATileThatHasNotPublished) {
  for (const Index groups : {1, 2, 3, 8, 31}) {
    for (int launched = 0; launched < 20; ++launched) {
      SCOPED_TRACE(::testing::Message() << groups << " groups");
      const auto words = static_cast<std::size_t>(kTiles * groups);
      std::vector<Index> counts(static_cast<std::size_t>(groups));
      std::vector<std::uint8_t> waited(words);
      std::vector<Index> to(words);
      constexpr Index kRoom = 1000;
      Scratch scratch(context_);
      const TileSums sums =
          fresh_tile_sums(context_, scratch, kTiles, groups, kRoom, counts.data());
      launch<split_late_first>(context_, kTiles, kBlock, sums, waited.data(), to.data());
      context_.device_stream()->synchronize();
      for (Index group = 0; group < groups; ++group) {
        Index before = 0;
        for (Index tile = 0; tile < kTiles; ++tile) {
          const auto at = static_cast<std::size_t>(tile * groups + group);
          ASSERT_EQ(waited[at], tile == 0 ? 0 : 1);
          // to() counts from the start of the tile, so subtract the rows of earlier groups.
          const Index begin = group * (tile + 1) + group * (group - 1) / 2;
          EXPECT_EQ(to[at], group * kRoom + before - begin);
          before += tile + group + 1;
        }
        EXPECT_EQ(counts[static_cast<std::size_t>(group)], before);
      }
    }
  }
}

}  // namespace
}  // namespace sparsesync::cuda
