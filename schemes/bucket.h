// Row spaces: how the tensors of a bucket are laid out to be sent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/views.h"
#include "sparsesync/bucket.h"  // IWYU pragma: export

namespace sparsesync {

/// @throws InputError naming the tensor and the mend: no tensors, a name that is empty or stands
///         twice, rows or width < 1, sizes that cannot be counted, rounds that are not 1 to
///         kMostRounds, a mean of integers
void validate(const BucketSpec& spec);

/// The tensors of a bucket that share dtype and width, one after another: one index space of `rows`
/// rows.
struct RowSpace {
  DType dtype = DType::f32;
  Index width = 0;
  Index rows = 0;

  /// A tensor in the row space.
  struct Member {
    std::size_t tensor = 0;  // in BucketSpec::tensors
    Index first_row = 0;     // of it in the row space
  };
  std::vector<Member> members;

  Index row_bytes() const { return width * element_bytes(dtype); }
  /// Whether values are their own sums.
  bool is_own_sum() const { return sum_dtype(dtype) == dtype; }
  Index elements() const { return rows * width; }
  /// Bytes of the dense tensors.
  Index dense_bytes() const { return rows * row_bytes(); }
};

/// The bucket as it crosses: tensors of the wire type, where there is one.
BucketSpec on_wire(BucketSpec spec);

/// In the order in which the tensors first need them.
std::vector<RowSpace> row_spaces(std::span<const TensorSpec> tensors);

}  // namespace sparsesync
