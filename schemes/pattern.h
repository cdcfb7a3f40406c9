// Communication patterns: which workers send to which in each step of a phase.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/views.h"
#include "sparsesync/bucket.h"  // IWYU pragma: export
#include "sparsesync/rank.h"

namespace sparsesync {

/// Returns the rank that is `steps` after `rank` on the ring of all workers. Negative steps go
/// backwards.
constexpr Rank ring_neighbour(Rank rank, int steps, int size) {
  return {((rank.value + steps) % size + size) % size};
}

/// Returns all ranks other than `rank`, from rank + 1 on, cyclically. Starting at different peers
/// avoids that all workers send to the same one first.
inline std::vector<Rank> peers_after(Rank rank, int size) {
  std::vector<Rank> peers;
  for (int step = 1; step < size; ++step) peers.push_back(ring_neighbour(rank, step, size));
  return peers;
}

/// One of the rounds that a phase is divided into. Each round sends a range of positions.
struct Round {
  int index = 0;
  int count = 1;

  /// Returns all rounds of a phase in order.
  static std::vector<Round> all(int count);
  bool last() const { return index + 1 == count; }
  /// Returns the round's index as an array index.
  std::size_t position() const { return static_cast<std::size_t>(index); }
  /// Returns this round's part of [0, size). The parts of all rounds are consecutive, and their
  /// sizes differ by at most 1.
  IndexRange part_of(Index size) const;
  /// Returns this round's part of a range.
  IndexRange part_of(IndexRange range) const;
};

/// One worker's part of a step: it sends to the workers in `to` and receives from those in `from`,
/// all at the same time.
struct Step {
  std::vector<Rank> to;
  std::vector<Rank> from;
};

/// The steps of one round of a phase. In a reduce phase, information from each worker reaches all
/// others, directly or forwarded. The agreement on a rejection relies on this.
using Pattern = std::vector<Step>;

/// Returns one step in which every worker sends to every other worker.
Pattern all_to_all(Rank rank, int size);
/// Returns size - 1 steps, each to the right neighbour on the ring.
Pattern around_the_ring(Rank rank, int size);

/// Returns ceil(log2(n)) steps that inform all workers about all others. In step i, a worker sends
/// to the worker 2^i further on (dissemination barrier: Hensgen, Finkel, Manber, "Two algorithms
/// for barrier synchronization", 1988).
Pattern spreading_word(Rank rank, int size);

}  // namespace sparsesync
