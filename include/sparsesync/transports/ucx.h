// Transport `ucx`: workers are processes, connected by UCX.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "sparsesync/rank.h"
#include "sparsesync/rendezvous.h"
#include "sparsesync/transport.h"
#include "sparsesync/transports/chunks.h"

namespace sparsesync {

/// Configures the transport `ucx`.
struct UcxOptions {
  /// Network interfaces of this worker, separated by commas, as UCX names them: "eth0" or
  /// "mlx5_0:1". If it is empty, UCX_NET_DEVICES applies, then torch's GLOO_SOCKET_IFNAME. If all
  /// are empty, UCX uses every interface.
  std::string interfaces = {};
  /// UCX's transports, as in UCX_TLS: "tcp,sm". If it is empty, UCX_TLS applies. If both are empty,
  /// UCX chooses, but not `posix`: a process that is killed early could leave a file in /dev/shm.
  std::string transports = {};
  /// How messages are divided into chunks, the same on all workers.
  Chunks chunks = {};
  /// Timeout of the call that creates the network, and of the destruction of an endpoint.
  std::chrono::milliseconds deadline{60'000};
};

/// Creates a network of all workers over UCX, and returns this worker's endpoint. All workers call
/// it. It does not use the rendezvous afterwards.
///
/// UCX connects two workers by shared memory, TCP or RDMA, as UCX_TLS and the interfaces allow. It
/// is loaded at run time: the copy that the process has loaded already, for example as a part of
/// Open MPI, or the system's. All workers need the same minor version of UCX.
///
/// One thread of each worker makes all UCX calls. It sleeps while nothing happens.
///
/// A worker leaves by destroying its endpoint, or if its process ends. Workers that wait for it
/// then throw PeerLostError. In a forked child, destroying the endpoint does nothing.
/// @param rendezvous  how the workers find each other
/// @param options     of this worker
/// @throws InputError if an option is invalid, for example if an interface does not exist
/// @throws AgreementError if workers have different versions of UCX, or different chunks
/// @throws PeerLostError if a worker ends meanwhile
/// @throws DeadlineError naming the workers that do not answer, and their addresses
/// @throws Error if UCX is missing or fails, on this worker or on another one
std::unique_ptr<Transport> ucx_over(Rendezvous& rendezvous, const UcxOptions& options = {});

/// Creates a network over UCX of the workers that a transport connects already.
/// @param words    carries the workers' addresses, and serves the native all-reduce if it has one
/// @param options  of this worker
/// @throws Error the errors of the other ucx_over()
std::unique_ptr<Transport> ucx_over(std::unique_ptr<Transport> words,
                                    const UcxOptions& options = {});

/// Creates a network of `size` workers that meet at a TCP address: meet_at() and ucx_over().
/// @code
/// HostMemory memory;
/// Session session(join("10.0.0.1:29500", Rank{rank}, size), memory);
/// @endcode
/// @param address  "HOST:PORT", an address of worker 0's machine
/// @param rank     this worker's rank
/// @param size     the number of workers
/// @param options  of this worker
/// @throws Error the errors of meet_at() and ucx_over()
std::unique_ptr<Transport> join(const std::string& address, Rank rank, int size,
                                const UcxOptions& options = {});

/// Returns why this process cannot use UCX, or an empty string if it can.
std::string why_no_ucx();

/// Returns the version of UCX, such as "1.13.1". Without UCX, returns the reason in parentheses.
std::string ucx_text();

}  // namespace sparsesync
