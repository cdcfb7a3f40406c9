// The gradients that a step puts into a bucket, in the form that schemes take them in.
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

/// One step's gradients of a bucket, in the form that a scheme asks for: coalesced row spaces, or
/// dense sums. Owns the memory of what it converts; keeps it for the next step.
class BucketInput {
 public:
  /// Its row spaces are those of on_wire(spec).
  BucketInput(const Context& context, const BucketSpec& spec);
  /// For rows without values: gradients of width 0, in the row spaces that `spec` has. Does not
  /// synchronize the stream.
  static BucketInput without_values(const Context& context, const BucketSpec& spec);
  /// Of row spaces that are no bucket's: a tensor for each, without a name.
  BucketInput(const Context& context, std::span<const RowSpace> spaces);

  /// Takes this step's gradients, one for each tensor. Copies their indices, so that those that are
  /// checked are those that are used. Reads their values until the reduce phase is over. Does not
  /// synchronize the stream: on a GPU the outcome of the check is waited for by whatever needs it
  /// first.
  /// @throws InputError naming the tensor, if an index is outside [0, rows) or the number of
  /// gradients is wrong
  /// @throws BudgetError
  void set(std::span<const Gradient> gradients);

  /// The rows of each row space, in the order given, where the outcome is not known yet and they
  /// will do if it is good: to work with them ahead and to fetch it with what that counts. Empty
  /// where it is known, or some of them will have to be converted anyway.
  std::span<const std::span<const Index>> unchecked() const { return unchecked_; }
  /// While there are unchecked() ones: the outcome, for verify().
  std::span<const Index> outcome() const { return checks_.first(std::ssize(checked_)); }
  /// Verifies the outcome.
  /// @return whether unchecked() were the rows of coalesced()
  /// @throws InputError as set()
  bool verify(std::span<const Index> outcome);

  /// Row space `space`, coalesced; valid until set(). Converts on the first call. Rows are numbered
  /// in the row space. Synchronizes the stream.
  /// @throws BudgetError, InputError as set()
  RowSparse coalesced(std::size_t space);

  /// Writes row space `space` as dense sums, all rows × width of them. Synchronizes the stream.
  /// @param sums  of the row space's sum_dtype(), aligned for it; overwritten
  /// @throws BudgetError, InputError as set()
  void start_sums(std::size_t space, Matrix sums);

  /// The tensor of a row of row space `space`, by its name, and the row's number there.
  std::pair<std::string_view, Index> named(std::size_t space, Index row) const;

  /// Rows of row space `space` that this worker's gradients touch: exactly if coalesced() was
  /// called in this step, else with repeats counted and dense tensors in full.
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
  /// The same, cast where the row space has another dtype. Valid until the next call.
  ConstMatrix values_as(std::size_t tensor, DType dtype);
  /// Writes one tensor's coalesced rows from `filled` on; how many rows there are then.
  Index append(const RowSpace::Member& member, SpaceStorage& storage, Index filled, Index room);

  /// Checks the indices that append() has written of a dense gradient. compact() reads the caller's
  /// memory in two passes, and a change between these would leave row numbers unwritten.
  /// @param indices  the capacity that append() had
  /// @throws InputError naming the tensor, if its gradient changed between the passes
  void expect_unchanged(const RowSpace::Member& member, std::span<const Index> indices, Index rows);

  Context context_;
  std::vector<TensorSpec> tensors_;
  std::vector<RowSpace> spaces_;
  std::vector<SpaceStorage> storage_;
  std::vector<Gradient> gradients_;     // with the indices below
  std::vector<Buffer<Index>> indices_;  // [tensor] a copy of its gradient's
  std::vector<bool> is_coalesced_;      // of each tensor's gradient, as it was given
  // What start_check() found, two numbers for each tensor, and a copy on the host; whether that is
  // yet to be made.
  Buffer<Index> checks_;
  std::vector<Index> checked_;
  bool is_pending_ = false;
  std::vector<std::span<const Index>> unchecked_;  // [row space]
  CoalesceWorkspace workspace_;
  Buffer<Index> count_;
  Buffer<std::byte> wide_;  // rows of a tensor before they are rounded to the wire type
};

}  // namespace sparsesync
