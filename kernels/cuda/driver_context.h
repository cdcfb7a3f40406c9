// The current GPU of a thread, by contexts of the driver. cudaSetDevice() would do the same, but it
// also creates the context of the GPU that is restored afterwards: 500 MB on GPU 0 in each process
// that works on another one, and an error if GPU 0 is exclusive to another process.
#pragma once

#include "kernels/base/device_stream.h"
#include "kernels/base/error.h"

namespace sparsesync::cuda {

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
