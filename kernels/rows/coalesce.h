// Coalesce: sums the rows that occur several times and brings them into increasing order.
#pragma once

#include <optional>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"

namespace sparsesync {

/// What a list of indices is found to be at the door.
struct IndexCheck {
  /// The first place whose index is outside [0, rows), if there is one.
  std::optional<Index> outside;
  /// Whether the indices increase strictly: already coalesced.
  bool coalesced = true;
};

/// What start_check() writes.
struct FoundIndices {
  /// Two numbers: the first place whose index is outside, and the first whose index is not above
  /// the one before it; kNowhere where there is none.
  static constexpr std::size_t kNumbers = 2;
  static constexpr Index kNowhere = -1;

  /// What the numbers say.
  static IndexCheck check(std::span<const Index, kNumbers> found) {
    const auto position = [&](std::size_t i) { return static_cast<std::uint64_t>(found[i]); };
    IndexCheck check;
    // What is behind the first one outside is not looked at.
    check.coalesced = position(1) >= position(0);
    if (found[0] != kNowhere) check.outside = found[0];
    return check;
  }
};

/// Scratch of coalesce().
struct CoalesceWorkspace {
  explicit CoalesceWorkspace(const Context& context)
      : order(context), sums(context), sort(context) {}
  Buffer<Index> order;
  Buffer<std::byte> sums;  // of one row
  SortWorkspace sort;
};

namespace cpu {
/// Looks at every index once. Synchronizes the stream.
/// @param rows  of the tensor that the indices are of
IndexCheck check_indices(const Context& context, Index rows, std::span<const Index> indices);

/// The same, whose outcome stays in the context's memory. Does not synchronize the stream.
/// @param found  receives what FoundIndices says
void start_check(const Context& context, Index rows, std::span<const Index> indices,
                 std::span<Index> found);

/// Writes the distinct rows of `from` in increasing order, each with the sum of its values: in the
/// order of `from`, in the sum type, rounded once. Does not synchronize the stream.
/// @param from     indices in [0, rows.size()): check_indices() says so
/// @param rows     what these rows are called in the result: rows.begin is added to each number
/// @param indices  room for from.indices.size() indices
/// @param values   as many rows; dtype and width as from.values
/// @param count    receives how many rows were written
/// @throws BudgetError if the workspace may not grow
void coalesce(const Context& context, RowSparse from, IndexRange rows, std::span<Index> indices,
              Matrix values, Count count, CoalesceWorkspace& workspace);
}  // namespace cpu

SPARSESYNC_OPERATION(check_indices);
SPARSESYNC_OPERATION(start_check);
SPARSESYNC_OPERATION(coalesce);

}  // namespace sparsesync
