// Transport `local`: the workers are threads of one process, each with a link of its own that is
// waited for in real time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sparsesync/transport.h"

namespace sparsesync {

/// The link of each worker, in each direction.
struct LocalLink {
  std::optional<double> rate_bps;  // nothing: as fast as memory
  double latency_s = 0;
};

/// The network between the workers of one process. Messages leave a worker one after another in the
/// order in which it posted them, cross a switch that never drops, and enter a worker chunk by
/// chunk as they come: a link is busy for bytes · 8 / rate in each direction, headers included,
/// whoever the peer is.
class LocalNetwork {
 public:
  /// @param size              workers
  /// @param workers_per_node  what node() tells; all on one node where there is nothing
  explicit LocalNetwork(int size, LocalLink link = {},
                        std::optional<int> workers_per_node = std::nullopt);
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

  /// A worker's end, to be taken once for each rank, in [0, size). A worker that destroys its end
  /// has left: those that wait for it get PeerLostError. The network outlives all ends.
  std::unique_ptr<Transport> join(Rank rank);

  struct State;  // of the implementation

 private:
  std::unique_ptr<State> state_;
};

/// Bytes of a chunk: messages come in over a link that has a rate chunk by chunk, in the order of
/// their arrival, whoever sent them.
inline constexpr std::int64_t kLinkChunkBytes = 16 * 1024;

}  // namespace sparsesync
