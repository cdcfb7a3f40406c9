// Transport `nccl`: payloads go from GPU to GPU by NCCL.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "sparsesync/context.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Configures one end of an NCCL network.
struct NcclOptions {
  int device = 0;                    // the GPU's number
  MemoryResource* memory = nullptr;  // of the GPU; outlives the transport
  MemoryResource* pinned = nullptr;  // of the host, that the GPU reaches; outlives the transport
  std::chrono::milliseconds deadline{60'000};  // of connecting, and of the device's own waits
};

/// Connects workers on GPUs by NCCL (non-blocking communicators, grouped sends and receives in the
/// stream of the context).
///
/// A message is two calls: its header, then its payload, whose size the header tells. So a group
/// takes one synchronization of the host, when it is first asked about. Groups go one after another
/// in the order in which they were posted, whatever the order in which they are asked for.
///
/// NCCL neither says that a worker aborted nor why, and has no deadline: that goes over `words`,
/// another network between the same workers, which brings them together, too, carries the groups of
/// contexts on the host, and tells who shares a machine. While the host waits for the device it
/// looks there; after an error the communicator is aborted, so that the device waits no longer.
///
/// Called by all workers.
/// @param words  knows the host's memory
/// @throws DeviceError if there is no such GPU, or NCCL is not there or does not connect them,
/// AgreementError naming both
///         where workers have different ones, what Transport throws
std::unique_ptr<Transport> nccl_over(std::unique_ptr<Transport> words, const NcclOptions& options);

/// The version of the machine's NCCL, as "2.28.9"; why there is none, in brackets.
std::string nccl_text();

}  // namespace sparsesync
