// A transport for GPU memory over a transport that handles only host memory.
#pragma once

#include <memory>

#include "kernels/base/context.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Returns a transport that stages GPU payloads in pinned host memory at both ends. Staging is
/// pipelined. A message is sent as soon as its copy to the host is complete, while later messages
/// are still being copied. A received message is copied to the GPU while others still arrive. The
/// host waits for the device once per message of a group. Groups with CPU contexts are passed to
/// `network` unchanged.
/// @param pinned  memory for staging buffers, which are kept; outlives the transport
std::unique_ptr<Transport> staged(std::unique_ptr<Transport> network, MemoryResource& pinned);

}  // namespace sparsesync
