// What operations look at and write to. A view owns nothing and never outlives what it views.
#pragma once

#include <cstddef>
#include <span>

#include "sparsesync/matrix.h"  // IWYU pragma: export

namespace sparsesync {

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

/// A row-sparse gradient: values.row(i) belongs to row indices[i]. *Coalesced* means that the
/// indices increase strictly.
struct RowSparse {
  std::span<const Index> indices;
  ConstMatrix values;  // values.rows == indices.size()
};

}  // namespace sparsesync
