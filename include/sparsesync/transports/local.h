// Transport `local`: workers are threads of one process, with simulated links that delay messages
// in real time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sparsesync/transport.h"

namespace sparsesync {

/// Configures the link of each worker. Both directions have the same rate and latency.
struct LocalLink {
  std::optional<double> rate_bps;  ///< bits/s; nothing: memory speed
  double latency_s = 0;            ///< seconds per message
};

/// Connects the threads of one process.
///
/// A worker's messages leave in the order in which it posted them, pass a switch that never drops
/// data, and are received chunk by chunk in the order of arrival. A message occupies the sender's
/// and the receiver's link for `bytes · 8 / rate_bps` seconds each, including its header.
///
/// The network outlives all its endpoints. Each endpoint is used by its worker's thread.
/// @code
/// LocalNetwork network(2);
/// std::jthread other(work, network.join(Rank{1}));
/// work(network.join(Rank{0}));
/// @endcode
/// The complete program is examples/cpp/threads.cpp.
class LocalNetwork {
 public:
  /// @param size              number of workers
  /// @param link              rate and latency of all links
  /// @param workers_per_node  workers that Transport::node() reports per machine; nothing: all on
  ///     one
  explicit LocalNetwork(int size, LocalLink link = {},
                        std::optional<int> workers_per_node = std::nullopt);
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

  /// Returns a worker's endpoint. Call it once for each rank in [0, size). A worker leaves the
  /// network by destroying its endpoint. Workers that wait for it then throw PeerLostError.
  std::unique_ptr<Transport> join(Rank rank);

  struct State;  ///< internal

 private:
  std::unique_ptr<State> state_;
};

/// Size of a chunk in bytes. A link with a rate receives messages chunk by chunk, in the order of
/// arrival from all senders.
inline constexpr std::int64_t kLinkChunkBytes = 16 * 1024;

}  // namespace sparsesync
