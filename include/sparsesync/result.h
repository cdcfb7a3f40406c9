// The result of a step for one tensor.
#pragma once

#include <span>

#include "sparsesync/context.h"
#include "sparsesync/gradient.h"
#include "sparsesync/matrix.h"

namespace sparsesync {

/// Every worker's result for one tensor. A view, valid until the bucket's next reduce is
/// submitted.
struct TensorResult {
  Gradient::Layout layout = Gradient::Layout::row_sparse;
  std::span<const Index> indices;  // rows of the tensor, increasing; none where dense
  ConstMatrix values;              // a row for each index; all rows where dense
};

/// Writes a result as a dense tensor. Does not synchronize the stream.
/// @param out  all rows of the tensor; overwritten
void to_dense(const Context& context, const TensorResult& result, Matrix out);

/// The rows that a bucket's last step touched in one of its row spaces.
struct ObservedRows {
  Index touched = 0;  // by this worker
  Index united = 0;   // by all workers; all rows where nobody knows
};

}  // namespace sparsesync
