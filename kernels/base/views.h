// Views of the memory that operations read and write. A view owns nothing and must not outlive that
// memory.
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

/// Returns the elements whose positions are in `range`.
template <typename T>
std::span<T> part_of(std::span<T> all, IndexRange range) {
  return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

/// A row-sparse gradient: values.row(i) is the gradient of row indices[i]. *Coalesced* means that
/// the indices are strictly increasing.
struct RowSparse {
  std::span<const Index> indices;
  ConstMatrix values;  // values.rows == indices.size()
};

/// Divides [0, size) into `parts` consecutive ranges whose sizes differ by at most 1. The longer
/// ranges come first. For rows this is a division by row number, not by hash (Zen: "even ranges").
class EvenRanges {
 public:
  /// @param size   at least 0
  /// @param parts  at least 1
  constexpr EvenRanges(Index size, Index parts) : size_(size), parts_(parts) {}

  constexpr Index parts() const { return parts_; }
  /// @param part  in [0, parts())
  constexpr IndexRange range(Index part) const { return {begin(part), begin(part + 1)}; }
  /// Returns the range that contains a row.
  /// @param row  in [0, size)
  constexpr Index part_of(Index row) const {
    const Index longer = size_ % parts_;  // number of ranges with one more element; they come first
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
