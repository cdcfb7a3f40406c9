// The part of cub::DeviceRadixSort that the kernels use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda_runtime.h"

namespace cub {

/// Represents the kernels of CUB, whose names the library does not know.
inline void radix_sort_kernel() {}
inline const cudaFunction_t radix_sort_function =
    sparsesync::emulated_cuda::function_of(reinterpret_cast<const void*>(radix_sort_kernel));

struct DeviceRadixSort {
  /// Sorts keys stably. Like CUB, returns the scratch size in bytes if `scratch` is null.
  template <typename Key, typename Number>
  static cudaError_t SortKeys(void* scratch, std::size_t& scratch_bytes, const Key* in, Key* out,
                              Number count, int begin_bit, int end_bit, cudaStream_t stream) {
    if (scratch == nullptr) {
      scratch_bytes = 256;
      return cudaSuccess;
    }
    if (!sparsesync::emulated_cuda::is_loaded(radix_sort_function, stream)) {
      return cudaErrorInvalidDeviceFunction;
    }
    sparsesync::emulated_cuda::enqueue(stream, [=] {
      const int bits = end_bit - begin_bit;
      const Key mask = bits >= 64 ? ~Key{0} : (Key{1} << static_cast<unsigned>(bits)) - 1;
      const auto digits = [=](Key key) {
        return bits == 0 ? Key{0} : key >> static_cast<unsigned>(begin_bit) & mask;
      };
      std::copy(in, in + count, out);
      std::stable_sort(out, out + count, [&](Key a, Key b) { return digits(a) < digits(b); });
    });
    return cudaPeekAtLastError();  // like CUB, includes an error that other code left
  }
};

}  // namespace cub
