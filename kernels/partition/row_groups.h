// Row groups: computes the group of a row and its position in the group by arithmetic, without
// tables. Host and device share it.
#pragma once

#include <cstdint>

#include "kernels/base/bits.h"
#include "kernels/partition/bijection.h"

namespace sparsesync {

/// A balanced division of rows into groups. Row r belongs to group (π(r) + offset) mod groups and
/// has position π(r) div groups there. Group sizes differ by at most one row, and no table is kept.
class RowGroups {
 public:
  /// Parameters of a division into groups.
  struct Division {
    std::int64_t rows = 1;    // R >= 1
    std::int64_t groups = 1;  // g >= 1
    // Rotates the groups of one row space relative to those of another; in [0, groups).
    std::int64_t offset = 0;
    std::uint64_t seed = 0;  // seed of π; the same on all workers
  };
  SPARSESYNC_HOST_DEVICE constexpr explicit RowGroups(const Division& division)
      : bijection_(division.rows, division.seed),
        groups_(division.groups),
        offset_(division.offset) {}

  SPARSESYNC_HOST_DEVICE constexpr const Bijection& bijection() const { return bijection_; }
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t groups() const { return groups_; }
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t offset() const { return offset_; }
  /// Returns the number of positions that a group can have: ceil(R / g).
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t universe() const {
    return ceil_div(bijection_.rows(), groups_);
  }

  /// Group and position of a row.
  struct Place {
    std::int64_t group;
    std::int64_t position;
  };
  /// Returns the group and position of a row.
  /// @param row  in [0, R)
  SPARSESYNC_HOST_DEVICE constexpr Place locate(std::int64_t row) const {
    const std::int64_t image = bijection_.forward(row);
    const std::int64_t group = image % groups_ + offset_;
    return {group < groups_ ? group : group - groups_, image / groups_};
  }

  /// Returns the number of rows in a group. Its positions are [0, size(group)): universe() of them,
  /// or one fewer.
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t size(std::int64_t group) const {
    const std::int64_t first = residue(group);
    return first < bijection_.rows() ? (bijection_.rows() - 1 - first) / groups_ + 1 : 0;
  }
  /// Returns whether a position holds a row. The last position of some groups is empty.
  SPARSESYNC_HOST_DEVICE constexpr bool holds(Place place) const {
    return image(place) < bijection_.rows();
  }

  /// Returns the row at a position.
  /// @pre holds(place)
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t row(Place place) const {
    return bijection_.backward(image(place));
  }

  /// Returns the residue of the images of a group's rows, modulo groups().
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t residue(std::int64_t group) const {
    const std::int64_t difference = group - offset_;
    return difference < 0 ? difference + groups_ : difference;
  }

 private:
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t image(Place place) const {
    return place.position * groups_ + residue(place.group);
  }

  Bijection bijection_;
  std::int64_t groups_;
  std::int64_t offset_;
};

}  // namespace sparsesync
