// The dense tensors of a node: its workers add them up around a ring and pass the sums on around
// it. The outer steps of two_level.
#pragma once

#include <vector>

#include "kernels/base/buffer.h"
#include "schemes/bucket.h"
#include "schemes/exchange.h"
#include "schemes/two_level/between_nodes.h"

namespace sparsesync {

/// One worker's dense sums of all row spaces, each in its sum type, and beside those that are no
/// sums of their own their values. All that is meant by a place and a round are rows that
/// Division::rows() names. Outlived by the division.
class NodeRing {
 public:
  /// @throws BudgetError
  NodeRing(const Context& context, const Division& division, Rank worker, int rounds);

  /// The steps of either phase, by the workers' ranks.
  Pattern pattern() const;

  /// Takes this worker's gradients. Does not synchronize the stream.
  void load(BucketInput& input);
  /// Adds up the node's tensors: afterwards sums() of the own place are the node's, and those of
  /// other places of no use. Order of summation: places q + 1, ..., w - 1, 0, ..., q for place q.
  void reduce_scatter(Exchange& exchange, Round round);
  /// Makes values of the sums of the own place: multiplies them by `scale`, once, and rounds.
  void round_own(Round round, double scale);
  /// Brings values() of each place to all workers of the node.
  void all_gather(Exchange& exchange, Round round);

  /// The sums of a row space's rows at a place in a round.
  Matrix sums(std::size_t space, int place, Round round) const;
  /// All values of a row space.
  Matrix values(std::size_t space) const;

  /// Adds what the workers at a place send on their rings in a round.
  void count(int place, Round round, Traffic& traffic) const;

 private:
  enum class Kind : std::uint8_t { sum, value };

  const std::vector<RowSpace>& spaces() const { return division_.spaces; }
  int around(int place) const;
  Matrix piece(Kind kind, std::size_t space, int place, Round round) const;
  /// Of a message: a place's rows of all row spaces, one after another.
  Index bytes_of(Kind kind, int place, Round round) const;
  Payload pack(Kind kind, int place, Round round);
  template <typename Use>
  void unpack(Kind kind, int place, Round round, const std::byte* message, Use&& use);

  Context context_;
  const Division& division_;
  int place_;
  std::vector<Rank> workers_;  // of the node
  std::vector<Buffer<std::byte>> sums_;
  std::vector<Buffer<std::byte>> values_;
  Buffer<std::byte> packed_;  // a message to the right, where there are several row spaces
  Buffer<std::byte> landed_;  // one from the left
};

/// Of a row space, what a NodeRing keeps for each worker and what crosses in it.
Index sum_bytes(const RowSpace& space);

/// A pattern of a scheme among some workers, by their ranks among all.
/// @param members  by their ranks among themselves
Pattern mapped(Pattern pattern, std::span<const Rank> members);

}  // namespace sparsesync
