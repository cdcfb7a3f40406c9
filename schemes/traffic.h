// What crosses the port in one step, exactly: what a scheme's bytes are held to.
#pragma once

#include <cstdint>
#include <vector>

#include "sparsesync/rank.h"

namespace sparsesync {

/// Payloads and messages of each worker, by rank.
struct Traffic {
  explicit Traffic(int size)
      : payload_sent(static_cast<std::size_t>(size)),
        payload_received(static_cast<std::size_t>(size)),
        messages_sent(static_cast<std::size_t>(size)) {}
  std::vector<std::int64_t> payload_sent;
  std::vector<std::int64_t> payload_received;
  std::vector<std::int64_t> messages_sent;  // each has a header of kHeaderBytes

  /// One message more, of so many bytes of payload.
  void message(Rank from, Rank to, std::int64_t payload);
  /// All workers: the network's own all-reduce of so many bytes, as it is counted.
  void all_reduce(std::int64_t bytes);
};

}  // namespace sparsesync
