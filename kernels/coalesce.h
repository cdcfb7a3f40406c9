// Coalesce: sums the rows that occur several times and brings them into increasing order.
#pragma once

#include <optional>
#include <span>

#include "kernels/buffer.h"
#include "kernels/context.h"
#include "kernels/sort.h"
#include "kernels/views.h"

namespace sparsesync {

/// What a list of indices is found to be at the door.
struct IndexCheck {
  /// The first place whose index is outside [0, rows), if there is one.
  std::optional<Index> outside;
  /// Whether the indices increase strictly: already coalesced.
  bool coalesced = true;
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
SPARSESYNC_OPERATION(coalesce);

}  // namespace sparsesync
