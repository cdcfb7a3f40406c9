// Who sends to whom in a phase, step by step.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/views.h"
#include "sparsesync/bucket.h"  // IWYU pragma: export
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

/// A cut of a phase into ranges of positions.
struct Round {
  int index = 0;
  int count = 1;

  /// All rounds of a phase, in their order.
  static std::vector<Round> all(int count);
  bool last() const { return index + 1 == count; }
  /// Where the round stands in a list of all.
  std::size_t position() const { return static_cast<std::size_t>(index); }
  /// This round's part of [0, size): the rounds' parts follow each other and differ by at most 1.
  IndexRange part_of(Index size) const;
  /// The same of any range.
  IndexRange part_of(IndexRange range) const;
};

/// A worker's part of one step: it sends to these and receives from those, all at once.
struct Step {
  std::vector<Rank> to;
  std::vector<Rank> from;
};

/// The steps of one round of a phase. By the end of a reduce phase word from each worker has
/// reached all others, directly or passed on: that is how a refusal is agreed.
using Pattern = std::vector<Step>;

/// Every worker at once, both ways.
Pattern all_to_all(Rank rank, int size);
/// size - 1 steps to the right neighbour.
Pattern around_the_ring(Rank rank, int size);

/// log2 n steps, the i-th to the worker 2^i further on: then all have heard from all (Hensgen,
/// Finkel, Manber, "Two algorithms for barrier synchronization", 1988).
Pattern spreading_word(Rank rank, int size);

}  // namespace sparsesync
