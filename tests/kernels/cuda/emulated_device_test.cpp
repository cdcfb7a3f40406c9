// ctest: DEVICES RACES
// The emulated device itself (tests/emulated_cuda): grids of several blocks.
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdint>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/kernel_test.h"

namespace sparsesync::cuda {
namespace {

class EmulatedDeviceTest : public KernelTest {
 protected:
  EmulatedDeviceTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }  // the device has threads
};

/// Returns whether all blocks of the grid have called this at the same time.
/// @param blocks  counter of the blocks that have called
bool meet(unsigned* blocks) {
  atomicAdd(blocks, 1U);
  return wait_in_kernel([&] { return atomicAdd(blocks, 0U) == gridDim.x; });
}

__global__ void meet_all(unsigned* blocks, std::uint8_t* met) {
  met[blockIdx.x] = meet(blocks) ? 1 : 0;
}

TEST_F(EmulatedDeviceTest, RunsAsManyConcurrentBlocksAsMultiprocessors) {
  std::vector<unsigned> blocks(1);
  std::vector<std::uint8_t> met(kBlocksAtOnce);
  for (int launched = 0; launched < 20; ++launched) {
    blocks[0] = 0;
    launch<meet_all>(context_, kBlocksAtOnce, 1, blocks.data(), met.data());
    context_.device_stream()->synchronize();
    ASSERT_EQ(met, std::vector<std::uint8_t>(kBlocksAtOnce, 1));
  }
}

struct Sums {
  unsigned added;
  std::uint64_t least;
  std::uint64_t most;
  unsigned bits;
  unsigned swapped;
};

__global__ void use_atomics(Sums* sums) {
  const auto thread = static_cast<std::uint64_t>(thread_number());
  atomicAdd(&sums->added, 1U);
  atomicMin(&sums->least, thread + 1);
  atomicMax(&sums->most, thread);
  atomicOr(&sums->bits, 1U << thread % 32);
  unsigned before = atomicAdd(&sums->swapped, 0U);
  while (true) {
    const unsigned found = atomicCAS(&sums->swapped, before, before + 1);
    if (found == before) break;
    before = found;
  }
}

TEST_F(EmulatedDeviceTest, LosesNoAtomicOperationsOfSeveralBlocks) {
  std::vector<Sums> sums(1);
  constexpr Index kMany = 500;
  for (int launched = 0; launched < 10; ++launched) {
    sums[0] = {0, ~std::uint64_t{0}, 0, 0, 0};
    launch<use_atomics>(context_, kMany, kBlock, sums.data());
    context_.device_stream()->synchronize();
    EXPECT_EQ(sums[0].added, kMany * kBlock);
    EXPECT_EQ(sums[0].least, 1U);
    EXPECT_EQ(sums[0].most, kMany * kBlock - 1);
    EXPECT_EQ(sums[0].bits, ~0U);
    EXPECT_EQ(sums[0].swapped, kMany * kBlock);
  }
}

__global__ void sum_block(unsigned* blocks, unsigned* sums) {
  __shared__ unsigned sum;
  if (threadIdx.x == 0) {
    sum = 0;
    meet(blocks);
  }
  __syncthreads();
  atomicAdd(&sum, blockIdx.x + 1);
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

TEST_F(EmulatedDeviceTest, GivesEachBlockSeparateSharedMemory) {
  std::vector<unsigned> blocks(1);
  std::vector<unsigned> sums(kBlocksAtOnce);
  launch<sum_block>(context_, kBlocksAtOnce, kBlock, blocks.data(), sums.data());
  context_.device_stream()->synchronize();
  for (unsigned block = 0; block < kBlocksAtOnce; ++block)
    EXPECT_EQ(sums[block], (block + 1) * kBlock);
}

__global__ void divide(unsigned* blocks, const float* numbers, float* quotients) {
  meet(blocks);
  quotients[blockIdx.x] = numbers[0] / numbers[1];
}

TEST_F(EmulatedDeviceTest, IgnoresTheRoundingModeOfTheHost) {
  std::vector<unsigned> blocks(1);
  const std::vector<float> numbers{1.0F, 3.0F};
  std::vector<float> quotients(kBlocksAtOnce);
  const int before = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  launch<divide>(context_, kBlocksAtOnce, 1, blocks.data(), numbers.data(), quotients.data());
  context_.device_stream()->synchronize();
  const int after = std::fegetround();
  std::fesetround(before);
  EXPECT_EQ(after, FE_DOWNWARD);
  EXPECT_EQ(quotients, std::vector<float>(kBlocksAtOnce, 0x1.555556p-2F));  // rounded up
}

__global__ void leave_a_warp(unsigned block) {
  if (blockIdx.x == block && threadIdx.x == 1) return;
  __syncwarp();
}

TEST_F(EmulatedDeviceTest, ReportsACollectiveThatALaneNeverReaches) {
  for (const unsigned block : {0U, 3U, 99U}) {
    EXPECT_DEATH(
        {
          launch<leave_a_warp>(context_, 100, kWarp, block);
          context_.device_stream()->synchronize();
        },
        "a collective that some threads of the block never reach")
        << block;
  }
}

__global__ void await_a_block_that_ended(unsigned* blocks) {
  meet(blocks);
  if (blockIdx.x == 0) wait_in_kernel([&] { return atomicAdd(blocks, 0U) > gridDim.x; });
}

TEST_F(EmulatedDeviceTest, ReportsAWaitThatNoBlockEnds) {
  std::vector<unsigned> blocks(1);
  EXPECT_DEATH(
      {
        launch<await_a_block_that_ended>(context_, kBlocksAtOnce, 1, blocks.data());
        context_.device_stream()->synchronize();
      },
      "a wait for another block, and no other block runs");
}

#if defined(__SANITIZE_THREAD__)
__global__ void count_without_atomics(unsigned* blocks, unsigned* count) {
  meet(blocks);
  ++*count;
}

TEST_F(EmulatedDeviceTest, LetsThreadSanitizerReportARaceOfBlocks) {
  std::vector<unsigned> blocks(1);
  std::vector<unsigned> count(1);
  EXPECT_EXIT(
      {
        launch<count_without_atomics>(context_, kBlocksAtOnce, 1, blocks.data(), count.data());
        context_.device_stream()->synchronize();
      },
      ::testing::ExitedWithCode(66), "WARNING: ThreadSanitizer: data race");
}
#endif

}  // namespace
}  // namespace sparsesync::cuda
