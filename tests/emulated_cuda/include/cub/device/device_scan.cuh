// The part of cub::DeviceScan that the kernels use.
#pragma once

#include <cstddef>

#include "cuda_runtime.h"

namespace cub {

struct DeviceScan {
  /// As CUB's; `in` may be `out`.
  template <typename In, typename Out, typename Number>
  static cudaError_t ExclusiveSum(void* scratch, std::size_t& scratch_bytes, In in, Out out,
                                  Number count, cudaStream_t stream) {
    return scan<false>(scratch, scratch_bytes, in, out, count, stream);
  }
  template <typename In, typename Out, typename Number>
  static cudaError_t InclusiveSum(void* scratch, std::size_t& scratch_bytes, In in, Out out,
                                  Number count, cudaStream_t stream) {
    return scan<true>(scratch, scratch_bytes, in, out, count, stream);
  }

 private:
  template <bool inclusive, typename In, typename Out, typename Number>
  static cudaError_t scan(void* scratch, std::size_t& scratch_bytes, In in, Out out, Number count,
                          cudaStream_t stream) {
    if (scratch == nullptr) {
      scratch_bytes = 256;
      return cudaSuccess;
    }
    sparsesync::emulated_cuda::enqueue(stream, [=] {
      std::remove_cvref_t<decltype(*out)> sum{};
      for (Number i = 0; i < count; ++i) {
        const auto value = in[i];
        out[i] = inclusive ? sum + value : sum;
        sum += value;
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
