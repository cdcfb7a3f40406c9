// The one way to look at the results of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

namespace sparsesync::cuda {

/// @param what  was tried, for people: "copy to the device"
/// @throws DeviceMemoryError if memory is not to be had, DeviceError for all else but success
void check(cudaError_t result, const char* what);

/// Ignores a failure on a path that cannot throw. The runtime would report it again, as the error
/// of the next call that asks for the last one.
inline void ignore(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

}  // namespace sparsesync::cuda
