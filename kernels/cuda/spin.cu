#include "kernels/cuda/kernel_registry.h"

#include <cstdint>

#include "kernels/cuda/driver.h"

namespace sparsesync::cuda {
namespace {

#if defined(__CUDACC__)
__device__ std::uint64_t nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin_kernel(std::uint64_t duration) {
  const std::uint64_t begin = nanoseconds();
  while (nanoseconds() - begin < duration) {
  }
}
#else
__global__ void spin_kernel(std::uint64_t) {}
#endif

}  // namespace

void spin(CudaStream& stream, int microseconds) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream.handle();
  check(cudaLaunchKernelEx(&config, registered_kernel<spin_kernel>,
                           std::uint64_t{1000} * static_cast<std::uint64_t>(microseconds)),
        "launching a kernel");
}

}  // namespace sparsesync::cuda
