// The rows that a worker pushes, divided among the servers' groups: of all row spaces.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "schemes/pattern.h"
#include "schemes/push_pull/partitioner.h"

namespace sparsesync {

class BucketInput;  // schemes/bucket_input.h

/// Row numbers, not values, in the order of their groups; keeps its memory from one step to the
/// next.
class DividedRows {
 public:
  /// @param placements  outlive this
  DividedRows(const Context& context, const Placements& placements, int size);

  /// Divides the input, in the first round, and finds, in each group, the indices that the round
  /// moves. Synchronizes the stream: once, where the input is coalesced as it was given and the
  /// placements do not by themselves.
  /// @throws BudgetError, InputError as BucketInput::coalesced()
  void find(Round round, BucketInput& input);

  /// This worker's indices in a group that the round moves, and where their rows are in the input.
  struct Selection {
    std::span<const Index> indices;
    std::span<const Index> sources;
  };
  /// After find().
  Selection selection(std::size_t space, int group) const;
  /// Of a row space, that the input has in all rounds; after find().
  Index rows(std::size_t space) const { return spaces_[space].rows; }

 private:
  struct OfSpace {
    explicit OfSpace(const Context& context)
        : divided(context), sources(context), group_begin(context) {}
    Index rows = 0;
    Buffer<Index> divided;
    Buffer<Index> sources;
    Buffer<Index> group_begin;
    std::vector<Index> bounds;  // of what the round moves of each group, on the host
  };

  void divide(std::size_t space, std::span<const Index> rows);
  std::span<const Index> locate(Round round);
  void take_bounds(std::span<const Index> fetched);
  bool find_unchecked(Round round, BucketInput& input);

  Context context_;
  const Placements& placements_;
  std::vector<OfSpace> spaces_;  // [row space]
  Buffer<Index> located_;
  std::vector<Index> fetched_;
};

}  // namespace sparsesync
