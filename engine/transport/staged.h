// A transport for memory of a GPU over one that knows the host's alone.
#pragma once

#include <memory>

#include "kernels/base/context.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Payloads go through pinned memory of the host at both ends. They are pipelined: a message leaves
/// as soon as it has come to the host, while the next ones are still on their way there, and goes
/// to the GPU while others still arrive. Waits for the device once for each message of a group.
/// Groups of contexts on a CPU go straight through.
/// @param pinned  memory for staging, which is kept; outlives the transport
std::unique_ptr<Transport> staged(std::unique_ptr<Transport> network, MemoryResource& pinned);

}  // namespace sparsesync
