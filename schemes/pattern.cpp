#include "schemes/pattern.h"

namespace sparsesync {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::announce:
      return "announce";
    case Phase::reduce:
      return "reduce";
    case Phase::gather:
      return "gather";
  }
  return "";
}

Pattern all_to_all(Rank rank, int size) {
  if (size < 2) return {};
  const std::vector<Rank> peers = peers_after(rank, size);
  return {Step{peers, {peers.rbegin(), peers.rend()}}};
}

Pattern around_the_ring(Rank rank, int size) {
  const Step step{{ring_neighbour(rank, 1, size)}, {ring_neighbour(rank, -1, size)}};
  return Pattern(static_cast<std::size_t>(size - 1), step);
}

Pattern spreading_word(Rank rank, int size) {
  Pattern pattern;
  for (int distance = 1; distance < size; distance *= 2) {
    pattern.push_back(
        {{ring_neighbour(rank, distance, size)}, {ring_neighbour(rank, -distance, size)}});
  }
  return pattern;
}

std::vector<Round> Round::all(int count) {
  std::vector<Round> rounds;
  for (int index = 0; index < count; ++index) rounds.push_back({index, count});
  return rounds;
}

IndexRange Round::part_of(Index size) const {
  // Computes size · index / count without overflow.
  const auto edge = [&](Index i) { return size / count * i + size % count * i / count; };
  return {edge(index), edge(index + 1)};
}

IndexRange Round::part_of(IndexRange range) const {
  const IndexRange within = part_of(range.size());
  return {range.begin + within.begin, range.begin + within.end};
}

}  // namespace sparsesync
