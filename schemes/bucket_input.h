// The gradients that a step puts into a bucket, in the form that schemes take them in.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/coalesce.h"
#include "kernels/context.h"
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

  /// Takes this step's gradients, one for each tensor; they stay the caller's until the reduce
  /// phase is over.
  /// @throws InputError naming the tensor, if an index is outside [0, rows) or the number of
  /// gradients is wrong
  void set(std::span<const Gradient> gradients);

  /// Row space `space`, coalesced; valid until set(). Converts on the first call. Rows are numbered
  /// in the row space. Synchronizes the stream.
  /// @throws BudgetError
  RowSparse coalesced(std::size_t space);

  /// Writes row space `space` as dense sums, all rows × width of them. Does not synchronize the
  /// stream.
  /// @param sums  of the row space's sum_dtype(), aligned for it; overwritten
  /// @throws BudgetError
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

  ConstMatrix values_of(std::size_t tensor) const;
  /// The same, cast where the row space has another dtype. Valid until the next call.
  ConstMatrix values_as(std::size_t tensor, DType dtype);
  /// Writes one tensor's coalesced rows from `filled` on; how many rows there are then.
  Index append(const RowSpace::Member& member, SpaceStorage& storage, Index filled, Index room);

  Context context_;
  std::vector<TensorSpec> tensors_;
  std::vector<RowSpace> spaces_;
  std::vector<SpaceStorage> storage_;
  std::vector<Gradient> gradients_;
  std::vector<bool> is_coalesced_;  // of each tensor's gradient, as it was given
  CoalesceWorkspace workspace_;
  Buffer<Index> count_;
  Buffer<std::byte> wide_;  // rows of a tensor before they are rounded to the wire type
};

}  // namespace sparsesync
