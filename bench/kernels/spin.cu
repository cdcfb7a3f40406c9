#include "bench/kernels/spin.h"

#include "kernels/cuda/launch.h"

namespace sparsesync::bench {
namespace {

#if defined(__CUDACC__)
__device__ std::uint64_t nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// A host submits a kernel in about 3 us; operations have up to 25 of them.
__global__ void spin_kernel() {
  constexpr std::uint64_t kNanoseconds = 100'000;
  const std::uint64_t begin = nanoseconds();
  while (nanoseconds() - begin < kNanoseconds) {
  }
}
#else
__global__ void spin_kernel() {}
#endif

}  // namespace

void spin(const Context& context) {
  cuda::launch(context, 1, 1, spin_kernel);
}

}  // namespace sparsesync::bench
