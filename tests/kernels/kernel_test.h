// For tests that launch kernels of their own on the emulated device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "kernels/base/views.h"
#include "tests/emulated_cuda/controls.h"
#include "tests/kernels/values.h"

namespace sparsesync::cuda {

/// Blocks that the device runs at the same time.
inline constexpr Index kBlocksAtOnce = emulated_cuda::kProcessors;

/// A context on the emulated device.
class KernelTest : public OperationTest {
 protected:
  void SetUp() override {
    if (!testing::on_cuda()) GTEST_SKIP() << "on GPUs only";
  }
};

/// Waits in a kernel until another block makes `condition` true.
/// @return whether it became true within 5 minutes: no block runs beside this one otherwise
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
