// The keyed bijection π of [0, R): which group a row belongs to and where it stands there is
// arithmetic. Host and device share it, so a machine without a GPU tests what a GPU runs.
#pragma once

#include <cstdint>

#include "kernels/bits.h"
#include "kernels/host_device.h"

namespace sparsesync {

/// π mixes the b = ceil(log2 R) bits of a row by rounds of (add, xor-shift, multiply by an odd
/// number) modulo 2^b, each of which can be undone, and walks the cycle until it is back below R:
/// fewer than two rounds of the walk on average, because 2^b < 2R. The key is drawn from a seed and
/// never searched.
class Bijection {
 public:
  /// @param rows  R >= 1
  /// @param seed  the same on all workers
  SPARSESYNC_HOST_DEVICE constexpr Bijection(std::int64_t rows, std::uint64_t seed)
      : rows_(static_cast<std::uint64_t>(rows)) {
    const int bits = bit_width_below(rows_);
    mask_ = low_mask(bits);
    shift_ = bits > 1 ? static_cast<unsigned>(bits + 1) / 2U : 1U;
    for (int round = 0; round < kRounds; ++round) {
      const auto salt = static_cast<std::uint64_t>(2 * round);
      add_[round] = mix64(mix64(seed) + salt);
      multiply_[round] = mix64(mix64(seed) + salt + 1) | 1U;
      inverse_[round] = odd_inverse(multiply_[round]);
    }
  }

  SPARSESYNC_HOST_DEVICE constexpr std::int64_t rows() const {
    return static_cast<std::int64_t>(rows_);
  }

  /// π(row), in [0, R). @param row in [0, R)
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t forward(std::int64_t row) const {
    auto x = static_cast<std::uint64_t>(row);
    do {
      for (int round = 0; round < kRounds; ++round) {
        x = (x + add_[round]) & mask_;
        x = x ^ (x >> shift_);
        x = (x * multiply_[round]) & mask_;
      }
      x = x ^ (x >> shift_);
    } while (x >= rows_);
    return static_cast<std::int64_t>(x);
  }

  /// π⁻¹(image), in [0, R). @param image in [0, R)
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t backward(std::int64_t image) const {
    auto x = static_cast<std::uint64_t>(image);
    do {
      x = x ^ (x >> shift_);
      for (int round = kRounds - 1; round >= 0; --round) {
        x = (x * inverse_[round]) & mask_;
        x = x ^ (x >> shift_);
        x = (x - add_[round]) & mask_;
      }
    } while (x >= rows_);
    return static_cast<std::int64_t>(x);
  }

 private:
  static constexpr int kRounds = 3;

  /// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the bits
  /// that are right.
  SPARSESYNC_HOST_DEVICE static constexpr std::uint64_t odd_inverse(std::uint64_t odd) {
    std::uint64_t inverse = odd;  // right in the lowest 3 bits
    for (int step = 0; step < 5; ++step) inverse *= 2U - odd * inverse;
    return inverse;
  }

  // x ^ (x >> s) undoes itself because s >= b / 2: the upper half is not changed by it.
  std::uint64_t rows_;
  std::uint64_t mask_ = 0;
  unsigned shift_ = 1;
  std::uint64_t add_[kRounds] = {};
  std::uint64_t multiply_[kRounds] = {};
  std::uint64_t inverse_[kRounds] = {};
};

/// Row groups: row r belongs to group (π(r) + offset) mod groups and has position π(r) div groups
/// there. Groups are equal to ±1 row and no table is kept (design: "balanced").
class RowGroups {
 public:
  /// @param rows    R >= 1
  /// @param groups  g >= 1
  /// @param offset  turns the groups of one row space against those of another, in [0, groups)
  SPARSESYNC_HOST_DEVICE constexpr RowGroups(std::int64_t rows, std::int64_t groups,
                                             std::int64_t offset, std::uint64_t seed)
      : bijection_(rows, seed), groups_(groups), offset_(offset) {}

  SPARSESYNC_HOST_DEVICE constexpr std::int64_t groups() const { return groups_; }
  /// Positions that a group can have: ceil(R / g).
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t universe() const {
    return ceil_div(bijection_.rows(), groups_);
  }

  struct Place {
    std::int64_t group;
    std::int64_t position;
  };
  SPARSESYNC_HOST_DEVICE constexpr Place place(std::int64_t row) const {
    const std::int64_t image = bijection_.forward(row);
    const std::int64_t group = image % groups_ + offset_;
    return {group < groups_ ? group : group - groups_, image / groups_};
  }

  /// Whether some row stands there: the last position of some groups is empty.
  SPARSESYNC_HOST_DEVICE constexpr bool holds(Place place) const {
    return image(place) < bijection_.rows();
  }

  /// The row that stands there. @param place must hold one
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t row(Place place) const {
    return bijection_.backward(image(place));
  }

 private:
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t image(Place place) const {
    const std::int64_t residue = place.group - offset_;
    return place.position * groups_ + (residue < 0 ? residue + groups_ : residue);
  }

  Bijection bijection_;
  std::int64_t groups_;
  std::int64_t offset_;
};

}  // namespace sparsesync
