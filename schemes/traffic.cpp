#include "schemes/traffic.h"

#include "schemes/transport.h"
#include "sparsesync/transport.h"

namespace sparsesync {

void Traffic::message(Rank from, Rank to, std::int64_t payload) {
  payload_sent[from.index()] += payload;
  payload_received[to.index()] += payload;
  ++messages_sent[from.index()];
}

void Traffic::all_reduce(std::int64_t bytes) {
  const std::int64_t moved = all_reduce_bytes(bytes, static_cast<int>(payload_sent.size()));
  for (std::int64_t& sent : payload_sent) sent += moved;
  for (std::int64_t& received : payload_received) received += moved;
}

}  // namespace sparsesync
