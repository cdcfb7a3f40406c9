// Registry of the library's kernels, so that they are loaded before the first one is launched.
#pragma once

#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

/// Loads all kernels of the library into a GPU's context. Later calls for the same GPU do nothing.
///
/// Otherwise CUDA would load each kernel at its first launch. Loading may wait for all work of the
/// GPU. If that includes a kernel of another NCCL communicator, workers can deadlock: the kernel
/// waits for another worker, and that worker waits for this one.
/// @throws DeviceError
void load_kernels(int device);

namespace detail {
/// Adds a kernel to the list for load_kernels().
void add_kernel(const void* kernel);

template <typename Kernel>
Kernel add_kernel(Kernel kernel) {
  add_kernel(reinterpret_cast<const void*>(kernel));
  return kernel;
}
}  // namespace detail

/// Address of a kernel. Its initialization at program start registers the kernel.
template <auto kernel>
inline const auto registered_kernel = detail::add_kernel(kernel);

/// Occupies a stream for a number of microseconds. Work that the host submits meanwhile then starts
/// without gaps, so two events around it time the work alone. Returns immediately on the emulated
/// device, which measures no time. Does not count as a launch. Does not synchronize the stream.
/// @throws DeviceError if the kernel cannot be launched
void spin(CudaStream& stream, int microseconds);

}  // namespace sparsesync::cuda
