// Row spaces: the layout in which the tensors of a bucket are sent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/views.h"
#include "sparsesync/bucket.h"  // IWYU pragma: export

namespace sparsesync {

/// Verifies a bucket's description.
/// @throws InputError naming the tensor and the fix: no tensors, an empty or repeated name, an
///     invalid size or number of rounds, or a mean of integers
void validate(const BucketSpec& spec);

/// The tensors of a bucket with the same dtype and width, concatenated into one index space of
/// `rows` rows.
struct RowSpace {
  DType dtype = DType::f32;
  Index width = 0;
  Index rows = 0;

  /// A tensor in the row space.
  struct Member {
    std::size_t tensor = 0;  // index in BucketSpec::tensors
    Index first_row = 0;     // its first row in the row space
  };
  std::vector<Member> members;

  Index row_bytes() const { return width * element_bytes(dtype); }
  /// Returns whether sums have the same dtype as the values.
  bool is_own_sum() const { return sum_dtype(dtype) == dtype; }
  Index elements() const { return rows * width; }
  /// Returns the size of the dense tensors in bytes.
  Index dense_bytes() const { return rows * row_bytes(); }
};

/// Returns the bucket with its tensors in the wire type, if it has one.
BucketSpec on_wire(BucketSpec spec);

/// Returns the row spaces of some tensors, in the order in which the tensors first use them.
std::vector<RowSpace> row_spaces(std::span<const TensorSpec> tensors);

}  // namespace sparsesync
