// What crosses between nodes in two_level: the part of a bucket that workers with the same place on
// their nodes hold for them, as a bucket of its own.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "schemes/scheme.h"
#include "schemes/two_level/nodes.h"

namespace sparsesync {

/// A bucket's row spaces, divided among the workers of a node and into rounds.
struct Division {
  std::vector<RowSpace> spaces;  // of the bucket
  Nodes nodes;

  /// The rows of a row space that cross in a round, of the range of a place.
  IndexRange rows(std::size_t space, int place, Round round) const;
};

/// A place's part of a round: a tensor for each row space of the bucket, in its sum type. One that
/// has no rows there is given one that nobody touches: a tensor has a row.
class BetweenNodes {
 public:
  /// @param bucket   that of two_level: its options say which scheme
  /// @param context, node, seed  as SchemeEnvironment has them, the node as rank
  BetweenNodes(const Context& context, const Division& division, const BucketSpec& bucket,
               int place, Round round, int node, std::uint64_t seed);

  /// What goes in: sums, which cross as the wire type where there is one.
  const BucketSpec& spec() const { return spec_; }
  /// Their members are numbered as the bucket's row spaces.
  std::span<const RowSpace> spaces() const { return spaces_; }
  /// What takes it across.
  Scheme& scheme() { return *scheme_; }

  /// Chooses anew from the statistics of the whole bucket.
  void adapt(const Division& division, const Statistics& statistics);

  /// What workers that touched these rows have in here, for an account.
  /// @param sets     one for each row space of the bucket
  /// @param storage  of what is returned
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

/// A part: its tensors are of their sum type.
BucketSpec spec_between(const Division& division, const SchemeOptions& options, int place,
                        Round round);

/// The sparsity of a part: that of its range, shared out evenly among the rounds.
/// @param spaces  row spaces of those tensors
Statistics statistics_between(const Division& division, std::span<const RowSpace> spaces, int place,
                              int rounds, const Statistics& statistics);

}  // namespace sparsesync
