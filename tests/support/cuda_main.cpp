// The main() of test programs that may run on a GPU. If tests are to run on a GPU and none is
// usable, it prints the reason and exits with status 77.
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
  // Device memory is freed together with the GPU's context. No destructor may access it later.
  cudaDeviceReset();
  std::_Exit(status);
}
