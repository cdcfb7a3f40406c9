// Compaction: converts a dense matrix to its nonzero rows.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync {

namespace cpu {
/// Finds the nonzero rows of `dense` and writes their row numbers and values in increasing order. A
/// row is dropped only if every element is zero, regardless of its sum. -0.0 counts as zero; NaN
/// and Inf do not. Does not synchronize the stream.
/// @param first_row  added to each row number
/// @param indices    output; unused elements may be overwritten
/// @param values     values.rows == indices.size(); dtype and width of `dense`
/// @param count      receives the number of nonzero rows, which may exceed the capacity. Only the
///                   first indices.size() of them are then written; repeat the call with more
///                   capacity.
void compact(const Context& context, ConstMatrix dense, Index first_row, std::span<Index> indices,
             Matrix values, Count count);

/// Compacts and partitions the nonzero rows of `dense`. Each group has the same capacity,
/// indices.size() / groups() rows. Groups follow each other in the output, and the rows of a group
/// are at its start, in increasing order. On a GPU, `dense` is read once per 128 groups. Does not
/// synchronize the stream.
/// @param first_row  added to each row number; the sum determines the row's group
/// @param groups     partition of at least first_row + dense.rows rows
/// @param indices    output; unused elements may be overwritten
/// @param values     values.rows == indices.size(); dtype and width of `dense`
/// @param counts     receives the number of rows of each group, which may exceed the capacity. Only
///                   rows that fit are then written; repeat the call with more capacity. In the
///                   context's memory, like Count.
void compact_groups(const Context& context, ConstMatrix dense, Index first_row,
                    const RowGroups& groups, std::span<Index> indices, Matrix values,
                    std::span<Index> counts);
}  // namespace cpu

SPARSESYNC_OPERATION(compact);
SPARSESYNC_OPERATION(compact_groups);

}  // namespace sparsesync
