// The one way to look at what the CUDA runtime says.
#pragma once

#include <cuda_runtime.h>

namespace sparsesync::cuda {

/// @param what  was tried, for people: "copy to the device"
/// @throws DeviceMemoryError if memory is not to be had, DeviceError for all else but success
void check(cudaError_t result, const char* what);

}  // namespace sparsesync::cuda
