// Neighbours on the ring of all workers, and the order in which a worker addresses its peers.
#pragma once

#include <vector>

#include "sparsesync/rank.h"

namespace sparsesync {

/// The worker `steps` further on around the ring of all; backwards where they are negative.
constexpr Rank ring_neighbour(Rank rank, int steps, int size) {
  return {((rank.value + steps) % size + size) % size};
}

/// The workers other than `rank`, from rank + 1 on, around: so that not all start with the same
/// peer.
inline std::vector<Rank> peers_after(Rank rank, int size) {
  std::vector<Rank> peers;
  for (int step = 1; step < size; ++step) peers.push_back(ring_neighbour(rank, step, size));
  return peers;
}

}  // namespace sparsesync
