// Checks the results of CUDA's runtime, and declares functions of its driver that the runtime has
// no call for.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"

namespace sparsesync::cuda {

/// @param what  was tried, for people: "copy to the device"
/// @throws DeviceMemoryError if memory is not to be had, DeviceError for all else but success
void check(cudaError_t result, const char* what);

/// Ignores a failure on a path that cannot throw. The runtime would report it again, as the error
/// of the next call that asks for the last one.
inline void ignore(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

/// The functions as the runtime finds them: programs do not link libcuda.
struct Driver {
  CUresult (*initialize)(unsigned flags) = nullptr;
  CUresult (*get_device)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*push)(CUcontext context) = nullptr;
  CUresult (*pop)(CUcontext* context) = nullptr;
  CUresult (*get_module)(CUmodule* module, CUfunction function) = nullptr;
  CUresult (*function_count)(unsigned* count, CUmodule module) = nullptr;
  CUresult (*enumerate_functions)(CUfunction* functions, unsigned count, CUmodule module) = nullptr;
  CUresult (*load_function)(CUfunction function) = nullptr;
  CUresult (*error_name)(CUresult result, const char** name) = nullptr;
};

/// Finds the functions at the first call.
/// @throws DeviceError if the driver lacks one of them
const Driver& driver();

/// @param what  was tried, for people: "making a GPU's context"
/// @throws DeviceError for all but success
void check_driver(CUresult result, const char* what);

/// Makes a GPU's primary context the current one of the calling thread until pop_context().
/// Contexts are retained until the process ends, as the runtime retains them.
/// @throws DeviceError
void push_context(int device);

/// Restores what was current before push_context(), which may be no context at all.
void pop_context() noexcept;

/// Calls `body` with a GPU as the thread's current one, on a path that cannot throw. Skips it if
/// the GPU has failed: then there is nothing to release.
template <typename Body>
void on_device(int device, const Body& body) noexcept {
  try {
    const DeviceGuard here(device);
    body();
  } catch (const Error&) {
  }
}

}  // namespace sparsesync::cuda
