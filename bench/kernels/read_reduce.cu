#include "bench/kernels/read_reduce.h"

#include "kernels/cuda/launch.h"

namespace sparsesync::bench {
namespace {

using cuda::kAllLanes;
using cuda::kBlock;
using cuda::kWarp;

__global__ void __launch_bounds__(kBlock)
    read_reduce_kernel(const uint4* words, Index count, std::uint32_t* sum) {
  constexpr int kInFlight = 4;  // independent loads in flight per thread: 64 bytes
  std::uint32_t own = 0;
  const Index step = cuda::thread_count();
  for (Index first = cuda::thread_number(); first < count; first += kInFlight * step) {
    uint4 read[kInFlight] = {};
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * step < count) read[k] = __ldcs(words + first + k * step);
    }
    for (int k = 0; k < kInFlight; ++k) own += read[k].x + read[k].y + read[k].z + read[k].w;
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    own += __shfl_xor_sync(kAllLanes, own, distance);
  }
  if (threadIdx.x % kWarp == 0) atomicAdd(sum, own);
}

}  // namespace

void read_reduce(const Context& context, std::span<const std::byte> bytes, std::uint32_t* sum) {
  const auto count = static_cast<Index>(bytes.size() / sizeof(uint4));
  cuda::clear(context, sum, sizeof(*sum));
  cuda::launch<read_reduce_kernel>(context, cuda::blocks_for(context, count), kBlock,
                                   reinterpret_cast<const uint4*>(bytes.data()), count, sum);
}

}  // namespace sparsesync::bench
