// The exchange between nodes in two_level. Workers with the same index on their nodes synchronize
// their range of rows, as a separate bucket.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "schemes/scheme.h"
#include "schemes/two_level/nodes.h"

namespace sparsesync {

/// Divides a bucket's row spaces among the workers of a node, and into rounds.
struct Division {
  std::vector<RowSpace> spaces;  // row spaces of the bucket
  Nodes nodes;

  /// Returns the rows of a row space that the workers with index `place` send between nodes in a
  /// round.
  IndexRange rows(std::size_t space, int place, Round round) const;
};

/// Synchronizes the range of one index in one round: a tensor for each row space of the bucket, in
/// the dtype of sums. A tensor has at least one row, so an empty range is replaced by one row that
/// no worker touches.
class BetweenNodes {
 public:
  /// @param context   as in SchemeEnvironment
  /// @param division  the division of row spaces
  /// @param bucket    the bucket of two_level; its options name the scheme
  /// @param place     index of the worker on its node
  /// @param round     the round
  /// @param node      the node, which is the rank in the scheme
  /// @param seed      as in SchemeEnvironment
  BetweenNodes(const Context& context, const Division& division, const BucketSpec& bucket,
               int place, Round round, int node, std::uint64_t seed);

  /// Returns the input's description: sums, which are sent in the wire type if there is one.
  const BucketSpec& spec() const { return spec_; }
  /// Returns the row spaces. Their members are the bucket's row spaces.
  std::span<const RowSpace> spaces() const { return spaces_; }
  /// Returns the scheme between nodes.
  Scheme& scheme() { return *scheme_; }

  /// Chooses the scheme's options again, from the statistics of the whole bucket.
  void adapt(const Division& division, const Statistics& statistics);

  /// Converts index sets of the bucket to index sets of this exchange.
  /// @param division  the division of row spaces
  /// @param sets      [row space of the bucket]
  /// @param storage   memory of the returned views
  std::vector<IndexSets> sets_of(const Division& division, std::span<const IndexSets> sets,
                                 std::vector<OwnedIndexSets>& storage) const;

 private:
  int place_;
  Round round_;
  BucketSpec spec_;
  BucketSpec crossing_;
  std::vector<RowSpace> spaces_;
  std::unique_ptr<Scheme> scheme_;
};

/// Returns the bucket of an exchange between nodes. Its tensors have the dtype of sums.
BucketSpec spec_between(const Division& division, const SchemeOptions& options, int place,
                        Round round);

/// Returns the statistics of an exchange between nodes: those of its range, divided evenly among
/// the rounds.
/// @param division    the division of row spaces
/// @param spaces      row spaces of spec_between()
/// @param place       index of the range
/// @param rounds      number of rounds
/// @param statistics  of the whole bucket
Statistics statistics_between(const Division& division, std::span<const RowSpace> spaces, int place,
                              int rounds, const Statistics& statistics);

}  // namespace sparsesync
