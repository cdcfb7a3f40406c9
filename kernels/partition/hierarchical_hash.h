// Hierarchical hashing (Zen, OSDI 2025, Algorithm 1): divides rows among partitions in parallel,
// without a lock and without losing one.
//
// Each partition has parallel memory of r1 cells and serial memory of r2 cells. A row tries k cells
// of its partition's parallel memory and, where all are taken, gets a cell of the serial memory by
// one atomic addition. Ours takes a cell by compare-and-swap. The paper writes a free cell and
// reads it back, which loses rows when threads truly run at the same time: one that saw the cell
// free may write after the other has read its own value back
// (tests/kernels/partition/hierarchical_hash_test.cpp shows it).
#pragma once

#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/partition/hash.h"

namespace sparsesync {

/// The memory of the partitions. A cell holds the place of a row in the input, or kFree. On a GPU
/// it has 4 bytes where these name all places, and takes half an element of the buffers.
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

/// r1: cells of parallel memory that each partition has. Twice the rows in all (the paper's
/// setting).
constexpr Index parallel_cells_for(Index rows, Index partitions) {
  return ceil_div<Index>(2 * rows, partitions);
}

/// r2 at first: a tenth of r1 (the paper's setting).
constexpr Index serial_cells_for(Index parallel_cells) {
  return ceil_div<Index>(parallel_cells, 10);
}

namespace cpu {
/// Empties the memory and puts the place of each row into a cell of its partition. Rows are taken
/// by all threads at once, so which cell a row gets differs from run to run. Synchronizes the
/// stream.
/// @param rows    distinct
/// @param memory  parallel_cells and serial_cells say how much there is
/// @return the serial cells that the fullest partition needed: where that is more than
///         serial_cells, rows were left out, and the caller repeats with more
/// @throws BudgetError if the memory may not grow to what was asked for
Index hash_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                HashMemory& memory);

/// Reads the occupied cells, partition after partition, in increasing order of the places: so the
/// result does not depend on who took which cell. Does not synchronize the stream.
/// @param rows             as they were for hash_rows(), which left none out
/// @param partition_rows   receives the rows, partition after partition; rows.size() of them
/// @param sources          receives, beside each, its place in `rows`
/// @param partition_begin  partitions + 1 numbers: partition j's rows are
///                         [partition_begin[j], partition_begin[j + 1]). Counts in the context's
///                         memory, as Count is
void extract_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                  const HashMemory& memory, std::span<Index> partition_rows,
                  std::span<Index> sources, std::span<Index> partition_begin);
}  // namespace cpu

SPARSESYNC_OPERATION(hash_rows);
SPARSESYNC_OPERATION(extract_rows);

/// hash_rows() and extract_rows(), whose arguments it takes: divides `rows` among the partitions.
/// Where serial memory is too small, hashing is repeated with what was needed and a quarter more,
/// and memory keeps that size. Synchronizes the stream.
/// @return how often it was repeated
/// @throws BudgetError if the memory may not grow
Index partition_by_hash(const Context& context, const RowHash& hash, std::span<const Index> rows,
                        std::span<Index> partition_rows, std::span<Index> sources,
                        std::span<Index> partition_begin, HashMemory& memory);

}  // namespace sparsesync
