// Blocks: a matrix as one flat array of elements, cut into blocks of equal size (OmniReduce,
// SIGCOMM 2021, section 3.1). Element e of the array, which is column e mod width of row
// e div width, lies in block e div block; the last block is padded with zeros.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// Finds the blocks that rows lie in, whatever their values, and writes their numbers and their
/// elements: those of the rows, and zeros. Does not synchronize the stream.
/// @param rows    coalesced; of width >= 1; values of any alignment
/// @param blocks  receives the blocks' numbers, increasing
/// @param values  values.rows == blocks.size(); a row is a block: values.width >= 1 elements; dtype
///                as `rows`; does not overlap them
/// @param count   receives how many blocks there are, which may be more than there is room for:
///                what is written is then of no use, and the caller repeats with more
void rows_to_blocks(const Context& context, RowSparse rows, std::span<Index> blocks, Matrix values,
                    Count count);

/// The way back: finds the rows in which some element is not zero, and writes their numbers and
/// values, increasing. Elements of blocks that are not there are zero. As compact() has it: -0.0
/// counts as zero, NaN and Inf do not. Does not synchronize the stream.
/// @param blocks      increasing numbers of blocks that begin before the matrix's end; a row of
///                    values is a block, of any alignment; what pads the last one may be anything
/// @param total_rows  of the matrix
/// @param indices     receives the rows
/// @param values      values.rows == indices.size(), values.width >= 1 that of the matrix; dtype as
///                    `blocks`; does not overlap them
/// @param count       receives how many rows there are, which may be more than there is room for:
///                    what is written is then of no use, and the caller repeats with more
void blocks_to_rows(const Context& context, RowSparse blocks, Index total_rows,
                    std::span<Index> indices, Matrix values, Count count);
}  // namespace cpu

SPARSESYNC_OPERATION(rows_to_blocks);
SPARSESYNC_OPERATION(blocks_to_rows);

}  // namespace sparsesync
