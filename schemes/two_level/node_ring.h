// Dense ring all-reduce within a node, the first and the last part of two_level.
#pragma once

#include <vector>

#include "kernels/base/buffer.h"
#include "schemes/bucket.h"
#include "schemes/exchange.h"
#include "schemes/two_level/between_nodes.h"

namespace sparsesync {

/// Holds one worker's dense sums of all row spaces, in the dtype of sums. Also holds their values
/// if the dtypes differ. An index `place` and a round select the rows of Division::rows(). The
/// division outlives this object.
class NodeRing {
 public:
  /// @throws BudgetError
  NodeRing(const Context& context, const Division& division, Rank worker, int rounds);

  /// Returns the steps of either phase, with ranks among all workers.
  Pattern pattern() const;

  /// Loads this worker's gradients.
  void load(BucketInput& input);
  /// Sums the node's tensors. Afterwards sums() for this worker's index hold the node's sums, and
  /// those for other indices are undefined. The reduction order for index q is q + 1, ..., w - 1,
  /// 0, ..., q.
  void reduce_scatter(Exchange& exchange, Round round);
  /// Multiplies the sums for this worker's index by `scale`, once, and rounds them to values.
  void round_own(Round round, double scale);
  /// Sends values() of each index to all workers of the node.
  void all_gather(Exchange& exchange, Round round);

  /// Returns the sums of a row space's rows for an index in a round.
  Matrix sums(std::size_t space, int place, Round round) const;
  /// Returns all values of a row space.
  Matrix values(std::size_t space) const;

  /// Adds the traffic of the workers with this index in a round.
  void count(int place, Round round, Traffic& traffic) const;

 private:
  enum class Kind : std::uint8_t { sum, value };

  const std::vector<RowSpace>& spaces() const { return division_.spaces; }
  int around(int place) const;
  Matrix piece(Kind kind, std::size_t space, int place, Round round) const;
  /// Returns the size of a message: the rows for an index, of all row spaces.
  Index bytes_of(Kind kind, int place, Round round) const;
  Payload pack(Kind kind, int place, Round round);
  template <typename Use>
  void unpack(Kind kind, int place, Round round, const std::byte* message, Use&& use);

  Context context_;
  const Division& division_;
  int place_;
  std::vector<Rank> workers_;  // [index]: the workers of the node
  std::vector<Buffer<std::byte>> sums_;
  std::vector<Buffer<std::byte>> values_;
  Buffer<std::byte> packed_;  // message to the right neighbour, if there are several row spaces
  Buffer<std::byte> landed_;  // message from the left neighbour
};

/// Returns the bytes of a row space's sums.
Index sum_bytes(const RowSpace& space);

/// Converts a pattern among some workers to ranks among all workers.
/// @param pattern  the pattern, with ranks among the members
/// @param members  [rank among the members]: rank among all workers
Pattern mapped(Pattern pattern, std::span<const Rank> members);

}  // namespace sparsesync
