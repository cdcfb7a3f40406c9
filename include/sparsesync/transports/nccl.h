// Transport `nccl`: sends payloads between GPUs with NCCL.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "sparsesync/context.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Configures one endpoint of an NCCL network.
struct NcclOptions {
  int device = 0;                    ///< the GPU's number
  MemoryResource* memory = nullptr;  ///< GPU memory; outlives the transport
  MemoryResource* pinned = nullptr;  ///< pinned host memory; outlives the transport
  /// Timeout of connecting, and of NCCL's waits on the GPU.
  std::chrono::milliseconds deadline{60'000};
};

/// Connects workers on GPUs with NCCL, and returns this worker's endpoint. All workers call it.
/// Uses non-blocking communicators, and grouped sends and receives in the context's stream.
///
/// @code
/// NcclOptions options;
/// options.device = gpu;
/// options.memory = &device_memory;
/// options.pinned = &pinned_memory;
/// Session session(nccl_over(world.join(), options), host_memory, session_options);
/// @endcode
///
/// A message takes two NCCL calls: the header, which contains the payload's size, and the payload.
/// So each group synchronizes the host once, when it is first queried. Groups run in the order in
/// which they were posted.
///
/// NCCL does not report that or why a worker aborted, and has no timeout. The network `words` does
/// this instead: it connects the same workers on the host, carries control messages and groups of
/// host contexts, and knows which workers share a machine. While the host waits for the GPU, it
/// polls `words`. After an error it aborts the communicator, which ends the GPU's wait.
/// @param words    a network between the same workers for host memory, such as MpiWorld::join()
/// @param options  the GPU and its memory
/// @throws DeviceError if the GPU does not exist, or NCCL is missing or fails to connect
/// @throws AgreementError if workers have different versions of NCCL; the message names both
/// @throws Error the errors of Transport
std::unique_ptr<Transport> nccl_over(std::unique_ptr<Transport> words, const NcclOptions& options);

/// Returns the version of this machine's NCCL, such as "2.28.9". Without NCCL, returns the reason
/// in parentheses.
std::string nccl_text();

}  // namespace sparsesync
