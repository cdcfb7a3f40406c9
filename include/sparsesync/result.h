// Results of a step.
#pragma once

#include <span>

#include "sparsesync/context.h"
#include "sparsesync/gradient.h"
#include "sparsesync/matrix.h"

namespace sparsesync {

/// Holds the result for one tensor. All workers get the same bits.
///
/// A view of the session's memory, valid until the bucket's next reduce is submitted. On a GPU the
/// pointers are device memory. See examples/cpp/mpi.cpp.
struct TensorResult {
  Gradient::Layout layout = Gradient::Layout::row_sparse;
  std::span<const Index> indices;  ///< rows of the tensor, increasing; empty if `layout` is dense
  ConstMatrix values;  ///< one row per index; all rows of the tensor if `layout` is dense
};

/// Writes a result as a dense tensor.
/// @param out  `[tensor rows, width]`, in the context's memory; overwritten
void to_dense(const Context& context, const TensorResult& result, Matrix out);

/// Counts the rows that a bucket's last step touched in one of its row spaces.
struct ObservedRows {
  Index touched = 0;  ///< rows touched by this worker
  /// Rows touched by any worker; all rows if the scheme does not count the union.
  Index united = 0;
};

}  // namespace sparsesync
