// How a kernel reports a fault. For the sources of kernels alone.
#pragma once

#include <cuda/atomic>

#include "kernels/cuda/fault.h"

namespace sparsesync::cuda {

/// Writes a fault to the host's memory. Several threads may.
__device__ inline void record_fault(FaultWord* word, Fault fault) {
  ::cuda::atomic_ref<FaultWord, ::cuda::thread_scope_system>(*word).store(
      static_cast<FaultWord>(fault), ::cuda::memory_order_relaxed);
}

}  // namespace sparsesync::cuda
