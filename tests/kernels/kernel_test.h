// Support for tests that launch their own kernels on the emulated device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "kernels/base/views.h"
#include "tests/emulated_cuda/controls.h"
#include "tests/kernels/values.h"

namespace sparsesync::cuda {

/// Number of blocks that the device runs concurrently.
inline constexpr Index kBlocksAtOnce = emulated_cuda::kProcessors;

/// A fixture with a context on the emulated device.
class KernelTest : public OperationTest {
 protected:
  void SetUp() override {
    if (!testing::on_cuda()) GTEST_SKIP() << "needs a GPU";
  }
};

/// Waits in a kernel until another block makes `condition` true.
/// @return whether it became true within 5 minutes. If not, no other block runs concurrently.
template <typename Condition>
bool wait_in_kernel(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    emulated_cuda::wait_for_other_block();
  }
  return true;
}

}  // namespace sparsesync::cuda
