// Compact: a dense matrix to its non-zero rows.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync {

namespace cpu {
/// Finds the rows of `dense` in which some element is not zero, and writes their numbers and values
/// in increasing order. A row is left out only when every element is zero, never by its sum; -0.0
/// counts as zero, NaN and Inf do not. Does not synchronize the stream.
/// @param first_row  what is added to a row's number
/// @param indices    room for the result; what is not filled may be scribbled on
/// @param values     values.rows == indices.size(), dtype and width as `dense`
/// @param count      receives how many rows there are, which may be more than there is room for:
///                   the first indices.size() of them are then written, and the caller repeats with
///                   more
void compact(const Context& context, ConstMatrix dense, Index first_row, std::span<Index> indices,
             Matrix values, Count count);

/// compact(), and a partition of what it finds: each group has the same room, indices.size() /
/// groups() rows, one group's behind the other's, and its rows stand at the begin of it in
/// increasing order. On a GPU `dense` is read once for each 128 groups. Does not synchronize the
/// stream.
/// @param first_row  what is added to a row's number; that number's group is the row's
/// @param groups     of at least first_row + dense.rows rows
/// @param indices    room for the result; what is not filled may be scribbled on
/// @param values     values.rows == indices.size(), dtype and width as `dense`
/// @param counts     receives, for each group, how many rows it has, which may be more than there
///                   is room for: as many as there is room for are then written, and the caller
///                   repeats with more. Counts in the context's memory, as Count is
void compact_groups(const Context& context, ConstMatrix dense, Index first_row,
                    const RowGroups& groups, std::span<Index> indices, Matrix values,
                    std::span<Index> counts);
}  // namespace cpu

SPARSESYNC_OPERATION(compact);
SPARSESYNC_OPERATION(compact_groups);

}  // namespace sparsesync
