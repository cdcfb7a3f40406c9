// Views of the memory that operations read and write. A view owns nothing and never outlives it.
#pragma once

#include <algorithm>
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

/// `parts` ranges of [0, size) that follow each other and whose sizes differ by at most 1; the
/// first ones are the longer ones. Of rows: divided by number, not by hash (Zen: "even ranges").
class EvenRanges {
 public:
  /// @param size   at least 0
  /// @param parts  at least 1
  constexpr EvenRanges(Index size, Index parts) : size_(size), parts_(parts) {}

  constexpr Index parts() const { return parts_; }
  /// @param part  in [0, parts())
  constexpr IndexRange range(Index part) const { return {begin(part), begin(part + 1)}; }
  /// The range that a row lies in.
  /// @param row  in [0, size)
  constexpr Index part_of(Index row) const {
    const Index longer = size_ % parts_;  // so many ranges, the first ones, have one more
    const Index shorter_from = begin(longer);
    return row < shorter_from ? row / (size_ / parts_ + 1)
                              : longer + (row - shorter_from) / (size_ / parts_);
  }

 private:
  constexpr Index begin(Index part) const {
    return part * (size_ / parts_) + std::min(part, size_ % parts_);
  }

  Index size_;
  Index parts_;
};

}  // namespace sparsesync
