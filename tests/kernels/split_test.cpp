// Looking back (kernels/cuda/split.h) at tiles that have and have not looked back themselves. The
// emulated device runs one block after another, so that operations never see the latter.
#include <gtest/gtest.h>

#if defined(SPARSESYNC_WITH_CUDA)
#include <cuda_runtime.h>
#endif

#if defined(SPARSESYNC_CUDA_EMULATED)

#include <vector>

#include "kernels/cuda/split.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync::cuda {
namespace {

using testing::Random;

using SplitTest = OperationTest;

struct Found {
  Index tile;
  unsigned all;
};

/// One tile: warp w has counts[w * groups + group] rows.
__global__ void split_one(TileSums sums, const unsigned* counts, Found* found, unsigned* next,
                          Index* to, unsigned* fitting) {
  __shared__ Split<256> split;
  const Index tile = split.take(sums);
  const unsigned warp = threadIdx.x / kWarp;
  for (unsigned i = threadIdx.x % kWarp; i < sums.groups; i += kWarp) {
    split.next()[i] = counts[warp * sums.groups + i];
  }
  const unsigned all = split.settle(sums);
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
  if (!testing::on_cuda()) GTEST_SKIP() << "of a device";
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
      context_.queue()->synchronize();
      // Of the tiles before, each has its own count, or, as far as it has come, all.
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
      launch(context_, 1, kBlock, split_one, sums, of_warps.data(), found.data(), next.data(),
             to.data(), fitting.data());
      context_.queue()->synchronize();
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
        // What of all rows stands before the group's end, as fits() is asked by it alone.
        ASSERT_EQ(fitting[group], begin + std::min(left, own));
        ASSERT_EQ(sums.words[kWordsBefore + tile * groups + static_cast<Index>(group)],
                  static_cast<std::uint64_t>(before[group] + own) << 2U | 2U);
        ASSERT_EQ(counts[group], tile == 0 ? own : -1) << "written by the last tile alone";
      }
      ASSERT_EQ(found[0].all, at);
    }
  }
}

}  // namespace
}  // namespace sparsesync::cuda

#endif
