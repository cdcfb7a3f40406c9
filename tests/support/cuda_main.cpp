// The main() of a program of tests that may run on a GPU. Exit status 77: they were to, and there
// is none that they can use; it says why.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/base/device_stream.h"
#include "tests/support/devices.h"

namespace {

using sparsesync::testing::on_cuda;

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!on_cuda()) return RUN_ALL_TESTS();
  if (!GTEST_FLAG_GET(list_tests)) {
    if (const std::string why = sparsesync::device_facts().problem; !why.empty()) {
      std::printf("SKIPPED: %s\n", why.c_str());
      return 77;
    }
  }
  const int status = RUN_ALL_TESTS();
  std::fflush(nullptr);
  // Memory goes with the GPU's context: nobody's destructor is to look at it after that.
  cudaDeviceReset();
  std::_Exit(status);
}
