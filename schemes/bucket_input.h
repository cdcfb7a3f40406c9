// Converts the gradients of a step to the form that schemes use.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/rows/coalesce.h"
#include "schemes/bucket.h"

namespace sparsesync {

/// Holds one step's gradients of a bucket, and converts them to coalesced row spaces or to dense
/// sums on request. Owns the memory of converted data and keeps it for the next step.
class BucketInput {
 public:
  /// Uses the row spaces of on_wire(spec).
  BucketInput(const Context& context, const BucketSpec& spec);
  /// Constructs an input for row indices without values: gradients of width 0 in the row spaces of
  /// `spec`.
  static BucketInput without_values(const Context& context, const BucketSpec& spec);
  /// Constructs an input for other row spaces, with one unnamed tensor for each.
  BucketInput(const Context& context, std::span<const RowSpace> spaces);

  /// Sets this step's gradients, one for each tensor. Copies their indices, so that later changes
  /// cannot bypass the check of the indices. Reads their values until the reduce phase ends.
  ///
  /// Does not synchronize the stream. On a GPU, the first function that needs the result of the
  /// index check waits for it.
  /// @throws InputError naming the tensor, if an index is outside [0, rows) or the number of
  ///     gradients is wrong
  /// @throws BudgetError
  void set(std::span<const Gradient> gradients);

  /// Returns the rows of each row space in their given order, while the index check is pending. A
  /// caller may process them in advance, and fetch outcome() together with its own numbers. Empty
  /// if the check has finished, or if some gradients need conversion in any case.
  std::span<const std::span<const Index>> unchecked() const { return unchecked_; }
  /// Returns the pending outcome of the index check, in the context's memory, for verify().
  std::span<const Index> outcome() const { return checks_.first(std::ssize(checked_)); }
  /// Verifies the outcome of the index check, fetched to the host.
  /// @return whether the rows of unchecked() equal those of coalesced()
  /// @throws InputError as set() does
  bool verify(std::span<const Index> outcome);

  /// Returns a row space with unique, increasing rows, numbered in the row space. Valid until
  /// set(). Converts on the first call. Synchronizes the stream.
  /// @throws BudgetError, InputError as set() does
  RowSparse coalesced(std::size_t space);

  /// Writes a row space as dense sums, `[rows, width]`. Synchronizes the stream.
  /// @param space  index of the row space
  /// @param sums   of the row space's sum_dtype(), aligned for it; overwritten
  /// @throws BudgetError, InputError as set() does
  void start_sums(std::size_t space, Matrix sums);

  /// Returns the tensor's name and the row in that tensor, for a row of a row space.
  std::pair<std::string_view, Index> named(std::size_t space, Index row) const;

  /// Returns the number of rows of a row space that this worker's gradients touch. It is exact
  /// after coalesced(). Before, it counts repeated rows and all rows of dense tensors.
  Index touched(std::size_t space) const;

 private:
  BucketInput(const Context& context, std::vector<TensorSpec> tensors,
              std::vector<RowSpace> spaces);

  struct SpaceStorage {
    explicit SpaceStorage(const Context& context) : indices(context), values(context) {}
    Buffer<Index> indices;
    Buffer<std::byte> values;
    RowSparse view;
    bool ready = false;
  };

  void find_unchecked();
  void verify();
  ConstMatrix values_of(std::size_t tensor) const;
  /// Returns the values of a tensor, converted to `dtype` if necessary. Valid until the next call.
  ConstMatrix values_as(std::size_t tensor, DType dtype);
  /// Appends one tensor's coalesced rows at row `filled`. Returns the new number of rows.
  Index append(const RowSpace::Member& member, SpaceStorage& storage, Index filled, Index room);

  /// Verifies the indices that append() wrote for a dense gradient. compact() reads the caller's
  /// memory in two passes. If the memory changes in between, some row indices are never written.
  /// @param member   the tensor
  /// @param indices  the indices of append(), at its full capacity
  /// @param rows     number of rows that were found
  /// @throws InputError naming the tensor, if its gradient changed between the passes
  void expect_unchanged(const RowSpace::Member& member, std::span<const Index> indices, Index rows);

  Context context_;
  std::vector<TensorSpec> tensors_;
  std::vector<RowSpace> spaces_;
  std::vector<SpaceStorage> storage_;
  std::vector<Gradient> gradients_;     // their indices are those in `indices_`
  std::vector<Buffer<Index>> indices_;  // [tensor]: copy of its gradient's indices
  // [tensor]: whether its gradient's rows are unique and increasing
  std::vector<bool> is_coalesced_;
  // Results of start_check(), two numbers per tensor, and their copy on the host.
  Buffer<Index> checks_;
  std::vector<Index> checked_;
  /// Whether the copy on the host is still missing.
  bool is_pending_ = false;
  std::vector<std::span<const Index>> unchecked_;  // [row space]
  CoalesceWorkspace workspace_;
  Buffer<Index> count_;
  Buffer<std::byte> wide_;  // a tensor's rows before conversion to the wire type
};

}  // namespace sparsesync
