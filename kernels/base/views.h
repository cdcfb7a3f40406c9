// What operations look at and write to. A view owns nothing and never outlives what it views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"

namespace sparsesync {

/// A row of a tensor, a position in a partition, or a number of either: never negative.
using Index = std::int64_t;

/// The consecutive numbers [begin, end).
struct IndexRange {
  Index begin = 0;
  Index end = 0;
  constexpr Index size() const { return end - begin; }
  friend constexpr bool operator==(IndexRange, IndexRange) = default;
};

/// The elements whose places lie in `range`.
template <typename T>
std::span<T> part_of(std::span<T> all, IndexRange range) {
  return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

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

/// A row-sparse gradient: values.row(i) belongs to row indices[i]. *Coalesced* means that the
/// indices increase strictly.
struct RowSparse {
  std::span<const Index> indices;
  ConstMatrix values;  // values.rows == indices.size()
};

}  // namespace sparsesync
