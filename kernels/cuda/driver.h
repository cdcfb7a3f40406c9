// Checks the results of CUDA runtime calls, and declares the driver functions that the runtime does
// not offer.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"

namespace sparsesync::cuda {

/// Checks the result of a runtime call.
/// @param what  the attempted action, for the message: "copying to the device"
/// @throws DeviceMemoryError if memory cannot be allocated, DeviceError for any other failure
void check(cudaError_t result, const char* what);

/// Ignores a failure on a path that cannot throw. Without this, the next call that asks for the
/// last error would report it.
inline void ignore(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

/// Driver functions, found through the runtime because programs do not link libcuda.
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

/// Returns the driver functions. The first call finds them.
/// @throws DeviceError if the driver lacks one of them
const Driver& driver();

/// Checks the result of a driver call.
/// @param what  the attempted action, for the message: "creating a GPU's context"
/// @throws DeviceError for any failure
void check_driver(CUresult result, const char* what);

/// Makes a GPU's primary context the current one of the calling thread until pop_context().
/// Contexts stay retained until the process ends, as the runtime does.
/// @throws DeviceError
void push_context(int device);

/// Restores the context that was current before push_context(), which may be none.
void pop_context() noexcept;

/// Calls `body` with a GPU as the thread's current one, on a path that cannot throw. Skips the call
/// if the GPU has failed, because then there is nothing to release.
template <typename Body>
void on_device(int device, const Body& body) noexcept {
  try {
    const DeviceGuard here(device);
    body();
  } catch (const Error&) {
  }
}

}  // namespace sparsesync::cuda
