// Hierarchical hashing (Zen, OSDI 2025, Algorithm 1): divides rows among partitions in parallel,
// without locks and without losing rows.
//
// Each partition has a parallel memory of r1 cells and a serial memory of r2 cells. A row tries k
// cells of its partition's parallel memory. If all are occupied, one atomic addition gives it a
// cell of the serial memory.
//
// This implementation claims a cell by compare-and-swap. The paper writes to a free cell and reads
// it back, which loses rows when threads really run concurrently. A thread that saw the cell free
// may write after another thread has read its value back (shown in
// tests/kernels/partition/hierarchical_hash_test.cpp).
#pragma once

#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/partition/hash.h"

namespace sparsesync {

/// The memory of the partitions. A cell holds the input position of a row, or kFree. On a GPU a
/// cell has 4 bytes if these can represent all positions; two cells then share an element of the
/// buffers.
struct HashMemory {
  static constexpr Index kFree = -1;

  explicit HashMemory(const Context& context)
      : parallel(context), serial(context), serial_used(context) {}

  Buffer<Index> parallel;     // [partition][r1]
  Buffer<Index> serial;       // [partition][r2]
  Buffer<Index> serial_used;  // [partition]; may count past r2
  Index parallel_cells = 0;   // r1
  Index serial_cells = 0;     // r2
};

/// Returns r1, the cells of parallel memory per partition. All partitions together have twice as
/// many cells as rows (the paper's setting).
constexpr Index parallel_cells_for(Index rows, Index partitions) {
  return ceil_div<Index>(2 * rows, partitions);
}

/// Returns the initial r2: a tenth of r1 (the paper's setting).
constexpr Index serial_cells_for(Index parallel_cells) {
  return ceil_div<Index>(parallel_cells, 10);
}

namespace cpu {
/// Empties the memory and puts the position of each row into a cell of its partition. Threads
/// insert rows concurrently, so the cell of a row varies from run to run. Synchronizes the stream.
/// @param rows    distinct
/// @param memory  its parallel_cells and serial_cells set the sizes
/// @return the serial cells that the fullest partition needs. If they exceed serial_cells, rows are
///         missing; repeat the call with more.
/// @throws BudgetError if the memory may not grow to the requested size
Index hash_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                HashMemory& memory);

/// Reads the occupied cells, partition after partition, in increasing order of input positions. The
/// result is thus independent of the cells that rows got. Does not synchronize the stream.
/// @param rows             the argument of hash_rows(), which must not have left any out
/// @param partition_rows   receives the rows, partition after partition; rows.size() elements
/// @param sources          receives the position in `rows` of each of them
/// @param partition_begin  partitions + 1 numbers: partition j has rows [partition_begin[j],
///                         partition_begin[j + 1]). In the context's memory, like Count.
void extract_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                  const HashMemory& memory, std::span<Index> partition_rows,
                  std::span<Index> sources, std::span<Index> partition_begin);
}  // namespace cpu

SPARSESYNC_OPERATION(hash_rows);
SPARSESYNC_OPERATION(extract_rows);

/// Divides `rows` among the partitions: hash_rows() followed by extract_rows(), with their
/// arguments. If serial memory is too small, hashing is repeated with the needed size plus a
/// quarter. The memory keeps that size. Synchronizes the stream.
/// @return number of repetitions
/// @throws BudgetError if the memory may not grow
Index partition_by_hash(const Context& context, const RowHash& hash, std::span<const Index> rows,
                        std::span<Index> partition_rows, std::span<Index> sources,
                        std::span<Index> partition_begin, HashMemory& memory);

}  // namespace sparsesync
