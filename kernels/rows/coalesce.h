// Coalescing: sums the rows that occur several times and sorts rows by index.
#pragma once

#include <optional>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"

namespace sparsesync {

/// Result of checking a list of indices.
struct IndexCheck {
  /// Position of the first index outside [0, rows), if any.
  std::optional<Index> outside;
  /// Whether the indices increase strictly, that is, are coalesced.
  bool coalesced = true;
};

/// The output format of start_check().
struct FoundIndices {
  /// Number of outputs: the position of the first index outside the range, and that of the first
  /// index not above its predecessor. kNowhere means none.
  static constexpr std::size_t kNumbers = 2;
  static constexpr Index kNowhere = -1;

  /// Converts the outputs to a result.
  static IndexCheck check(std::span<const Index, kNumbers> found) {
    const auto position = [&](std::size_t i) { return static_cast<std::uint64_t>(found[i]); };
    IndexCheck check;
    // Indices after the first one outside the range are not checked.
    check.coalesced = position(1) >= position(0);
    if (found[0] != kNowhere) check.outside = found[0];
    return check;
  }
};

/// Scratch memory of coalesce().
struct CoalesceWorkspace {
  explicit CoalesceWorkspace(const Context& context)
      : order(context), sums(context), sort(context) {}
  Buffer<Index> order;
  Buffer<std::byte> sums;  // one row
  SortWorkspace sort;
};

namespace cpu {
/// Checks every index. Synchronizes the stream.
/// @param rows  number of rows of the tensor
IndexCheck check_indices(const Context& context, Index rows, std::span<const Index> indices);

/// Does the same as check_indices(), but leaves the result in the context's memory. Does not
/// synchronize the stream.
/// @param found  receives the outputs that FoundIndices describes
void start_check(const Context& context, Index rows, std::span<const Index> indices,
                 std::span<Index> found);

/// Writes the distinct rows of `from` in increasing order, with the sums of their values. Values
/// are added in the order of `from`, in the sum type, and rounded once. Does not synchronize the
/// stream.
/// @param from     indices in [0, rows.size()), as check_indices() verifies
/// @param rows     row numbers in the result: rows.begin is added to each index
/// @param indices  capacity for from.indices.size() indices
/// @param values   the same number of rows; dtype and width of from.values
/// @param count    receives the number of rows written
/// @throws BudgetError if the workspace may not grow
void coalesce(const Context& context, RowSparse from, IndexRange rows, std::span<Index> indices,
              Matrix values, Count count, CoalesceWorkspace& workspace);
}  // namespace cpu

SPARSESYNC_OPERATION(check_indices);
SPARSESYNC_OPERATION(start_check);
SPARSESYNC_OPERATION(coalesce);

}  // namespace sparsesync
