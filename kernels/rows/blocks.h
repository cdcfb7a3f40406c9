// Blocks: divides a matrix, as one flat array of elements, into blocks of equal size (OmniReduce,
// SIGCOMM 2021, section 3.1). Element e of the array is column e mod width of row e div width and
// lies in block e div block. The last block is padded with zeros.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// Finds the blocks that contain rows, independent of the values. Writes the block numbers and the
/// elements of these blocks: those of the rows, and zeros. Does not synchronize the stream.
/// @param rows    coalesced; width >= 1; values of any alignment
/// @param blocks  receives the block numbers, increasing
/// @param values  [blocks.size(), block], one block per row, block >= 1 elements; dtype of `rows`;
///                does not overlap them
/// @param count   receives the number of blocks, which may exceed the capacity. The output is then
///                unusable; repeat the call with more capacity.
void rows_to_blocks(const Context& context, RowSparse rows, std::span<Index> blocks, Matrix values,
                    Count count);

/// Finds the rows with a nonzero element; the reverse of rows_to_blocks(). Writes their row numbers
/// and values in increasing order. Elements of missing blocks are zero. As in compact(), -0.0
/// counts as zero; NaN and Inf do not. Does not synchronize the stream.
/// @param blocks      increasing numbers of blocks that begin before the end of the matrix. Each
///                    row of values is a block, at any alignment. The padding of the last block may
///                    have any value.
/// @param total_rows  rows of the matrix
/// @param indices     receives the row numbers
/// @param values      [indices.size(), width], where width >= 1 is that of the matrix; dtype of
///                    `blocks`; does not overlap them
/// @param count       receives the number of rows, which may exceed the capacity. The output is
///                    then unusable; repeat the call with more capacity.
void blocks_to_rows(const Context& context, RowSparse blocks, Index total_rows,
                    std::span<Index> indices, Matrix values, Count count);
}  // namespace cpu

SPARSESYNC_OPERATION(rows_to_blocks);
SPARSESYNC_OPERATION(blocks_to_rows);

}  // namespace sparsesync
