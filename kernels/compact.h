// Compact: a dense matrix to its non-zero rows.
#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/views.h"

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
}  // namespace cpu

SPARSESYNC_OPERATION(compact);

}  // namespace sparsesync
