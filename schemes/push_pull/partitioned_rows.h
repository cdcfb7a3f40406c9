// Partitions a worker's rows among the servers' groups, for all row spaces.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "schemes/pattern.h"
#include "schemes/push_pull/partitioner.h"

namespace sparsesync {

class BucketInput;  // in schemes/bucket_input.h

/// Holds row indices (not values) in the order of their groups. Keeps its memory between steps.
class DividedRows {
 public:
  /// @param context     the context of all memory
  /// @param placements  outlive this object
  /// @param size        number of workers
  DividedRows(const Context& context, const Placements& placements, int size);

  /// Partitions the input, in the first round, and selects each group's indices of the round.
  /// Synchronizes the stream. One synchronization is enough if the given gradients are coalesced
  /// and divide() does not synchronize.
  /// @throws BudgetError, InputError as BucketInput::coalesced() does
  void find(Round round, BucketInput& input);

  /// This worker's group indices of the round in one group, and the positions of their rows in the
  /// input.
  struct Selection {
    std::span<const Index> indices;
    std::span<const Index> sources;
  };
  /// Returns the selection for a group. Valid after find().
  Selection selection(std::size_t space, int group) const;
  /// Returns the number of the input's rows in a row space, over all rounds. Valid after find().
  Index rows(std::size_t space) const { return spaces_[space].rows; }

 private:
  struct OfSpace {
    explicit OfSpace(const Context& context)
        : divided(context), sources(context), group_begin(context) {}
    Index rows = 0;
    Buffer<Index> divided;
    Buffer<Index> sources;
    Buffer<Index> group_begin;
    std::vector<Index> bounds;  // host copy: bounds of the round's indices in each group
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
