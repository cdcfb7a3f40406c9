// Row indices, and views of matrices of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparsesync/dtype.h"

namespace sparsesync {

/// A row of a tensor, a position in a partition, or a number of rows or positions. Never negative.
using Index = std::int64_t;

/// A view of a row-major matrix of values: `[rows, width]` elements without gaps.
/// @code
/// const Matrix table{data, DType::f32, 1000, 64};  // data: a std::byte pointer to f32 values
/// @endcode
template <typename Byte>
struct BasicMatrix {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  Index rows = 0;
  Index width = 0;

  Index row_bytes() const { return width * element_bytes(dtype); }
  Index bytes() const { return rows * row_bytes(); }
  std::span<Byte> as_bytes() const { return {data, static_cast<std::size_t>(bytes())}; }
};
/// A matrix that may be written.
using Matrix = BasicMatrix<std::byte>;
/// A matrix that may only be read.
using ConstMatrix = BasicMatrix<const std::byte>;
/// Returns a read-only view of the same matrix.
inline ConstMatrix as_const(Matrix matrix) {
  return {matrix.data, matrix.dtype, matrix.rows, matrix.width};
}

}  // namespace sparsesync
