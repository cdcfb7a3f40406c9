// Chunks of the transports that divide messages themselves: `mpi` and `ucx`.
#pragma once

#include <cstdint>

namespace sparsesync {

/// Configures how messages are divided into chunks.
struct Chunks {
  /// Largest chunk in bytes. A worker sends chunks to its peers in turn.
  std::int64_t bytes = 16 * 1024;
  /// Largest number of unacknowledged chunks of a worker, over all peers. Peers share it
  /// evenly, and each gets at least two. On one machine only the peers to which a worker is sending
  /// share it.
  ///
  /// A window beyond rate × round trip only lengthens queues and delays the peers'
  /// acknowledgements. A smaller window leaves the link idle. The default, 224 KiB, fills 25 Gbit/s
  /// at a round trip of 73 µs, and limits what sockets buffer. If the link is faster than the
  /// processor, windows of 28 to 56 are faster.
  int window = 14;
};

}  // namespace sparsesync
