// ctest: DEVICES RACES
// The decoupled look-back of kernels/cuda/tile_scan.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/tile_scan.h"
#include "tests/kernels/kernel_test.h"
#include "tests/support/random.h"

namespace sparsesync::cuda {
namespace {

using testing::Random;

using TileScanTest = KernelTest;

// Format of a tile's word; see kernels/cuda/tile_scan.h.
constexpr std::uint64_t kOwn = 1;
constexpr std::uint64_t kAll = 2;
constexpr unsigned kStateBits = 2;

struct Found {
  Index tile;
  Index before;
};

/// Scans one tile.
__global__ void scan_one(Tiles tiles, Index count, Found* found) {
  __shared__ Index shared;
  const Index tile = tiles.next_tile(&shared);
  const Index before = tiles.before(tile, count, &shared);
  if (threadIdx.x == 0) *found = {tile, before};
}

TEST_F(TileScanTest, LooksBackAtTilesInEveryState) {
  Random random(testing::seed());
  for (const Index tile : {0, 1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 500}) {
    for (int tried = 0; tried < 20; ++tried) {
      SCOPED_TRACE(::testing::Message() << "tile " << tile);
      std::vector<std::uint64_t> words(static_cast<std::size_t>(Tiles::words(tile + 1)));
      words[0] = static_cast<std::uint64_t>(tile);
      // The first tile has a complete prefix, and so have some tiles up to the last complete one.
      const Index last_complete = random.below(tile + 1);
      Index before = 0;
      for (Index i = 0; i < tile; ++i) {
        const Index count = random.below(3) * (Index{1} << 31);
        before += count;
        const bool complete = i <= last_complete && random.below(i == 0 ? 1 : 8) == 0;
        words[static_cast<std::size_t>(1 + i)] =
            static_cast<std::uint64_t>(complete ? before : count) << kStateBits |
            (complete ? kAll : kOwn);
      }
      const Index count = random.below(1000);
      std::vector<Found> found(1);
      launch<scan_one>(context_, 1, kBlock, Tiles(words), count, found.data());
      context_.device_stream()->synchronize();
      ASSERT_EQ(found[0].tile, tile);
      ASSERT_EQ(found[0].before, before);
      ASSERT_EQ(words.back(), static_cast<std::uint64_t>(before + count) << kStateBits | kAll);
    }
  }
}

constexpr Index kTiles = kBlocksAtOnce;

/// The first tile counts only after all others have published counts without a prefix. They cannot
/// finish looking back earlier.
__global__ void scan_late_first(Tiles tiles, std::uint64_t* words, std::uint8_t* waited,
                                Index* before) {
  __shared__ Index shared;
  const Index tile = tiles.next_tile(&shared);
  if (tile == 0 && threadIdx.x == 0) {
    for (Index other = 1; other < kTiles; ++other) {
      const SharedWord word(words[1 + other]);
      const bool published = wait_in_kernel([&] { return word.load(kRelaxed) != 0; });
      waited[other] = published && word.load(kRelaxed) % (1U << kStateBits) == kOwn ? 1 : 0;
      if (!published) break;
    }
  }
  __syncthreads();
  before[tile] = tiles.before(tile, 10 + tile, &shared);
}

TEST_F(TileScanTest, WaitsForATileThatHasNotPublished) {
  for (int launched = 0; launched < 20; ++launched) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(Tiles::words(kTiles)));
    std::vector<std::uint8_t> waited(kTiles);
    std::vector<Index> before(kTiles);
    launch<scan_late_first>(context_, kTiles, kWarp, Tiles(words), words.data(), waited.data(),
                            before.data());
    context_.device_stream()->synchronize();
    Index sum = 0;
    for (Index tile = 0; tile < kTiles; ++tile) {
      const auto at = static_cast<std::size_t>(tile);
      ASSERT_EQ(waited[at], tile == 0 ? 0 : 1);
      EXPECT_EQ(before[at], sum);
      sum += 10 + tile;
    }
  }
}

}  // namespace
}  // namespace sparsesync::cuda
