// Indices, and views of matrices of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparsesync/dtype.h"

namespace sparsesync {

/// A row of a tensor, a position in a partition, or a number of either: never negative.
using Index = std::int64_t;

/// A matrix of values: rows × width elements, rows one after another.
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
using Matrix = BasicMatrix<std::byte>;
using ConstMatrix = BasicMatrix<const std::byte>;
/// The same, not to be written to.
inline ConstMatrix as_const(Matrix matrix) {
  return {matrix.data, matrix.dtype, matrix.rows, matrix.width};
}

}  // namespace sparsesync
