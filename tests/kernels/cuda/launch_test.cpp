// ctest: DEVICES
// Launches of kernels (kernels/cuda/launch.h) on the emulated device.
#include <gtest/gtest.h>

#if defined(SPARSESYNC_WITH_CUDA)
#include <cuda_runtime.h>
#endif

#if defined(SPARSESYNC_CUDA_EMULATED)

#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/kernel_test.h"

namespace sparsesync::cuda {
namespace {

using Launch = KernelTest;

__global__ void count_blocks(unsigned* count) {
  if (threadIdx.x == 0) atomicAdd(count, 1U);
}

TEST_F(Launch, more_blocks_than_a_grid_can_have_are_rejected) {
  std::vector<unsigned> count(1);
  const auto launch_blocks = [&](Index blocks) {
    launch<count_blocks>(context_, blocks, 32, count.data());
    synchronize(context_);
  };
  launch_blocks(0);
  launch_blocks(3);
  // Converted to a 32-bit unsigned number, this count would be 1.
  EXPECT_THROW(launch_blocks((Index{1} << 32) + 1), ContractError);
  EXPECT_THROW(launch_blocks(kMostBlocks + 1), ContractError);
  EXPECT_THROW(launch_blocks(-1), ContractError);
  EXPECT_EQ(count[0], 3U);
}

}  // namespace
}  // namespace sparsesync::cuda

#endif
