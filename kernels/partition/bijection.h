// The keyed bijection π of [0, R). Host and device share it, so tests without a GPU cover the code
// that a GPU runs.
#pragma once

#include <cstdint>

#include "kernels/base/bits.h"

namespace sparsesync {

/// Permutes [0, R) with a keyed bijection π. It mixes the b = ceil(log2 R) bits of a row in rounds
/// of (add, xor-shift, multiply by an odd number) modulo 2^b. Each operation is invertible.
///
/// Cycle walking repeats the rounds until the result is below R, on average fewer than twice,
/// because 2^b < 2R. The key is derived from a seed; there is no search for a good key.
class Bijection {
 public:
  static constexpr int kRounds = 3;

  /// Derives the key.
  /// @param rows  R >= 1
  /// @param seed  the same on all workers
  SPARSESYNC_HOST_DEVICE constexpr Bijection(std::int64_t rows, std::uint64_t seed)
      : rows_(static_cast<std::uint64_t>(rows)) {
    const int bits = bit_width_below(rows_);
    mask_ = low_mask(bits);
    shift_ = bits > 1 ? static_cast<unsigned>(bits + 1) / 2U : 1U;
    for (int round = 0; round < kRounds; ++round) {
      const auto salt = static_cast<std::uint64_t>(2 * round);
      rounds_[round].add = mix64(mix64(seed) + salt);
      rounds_[round].multiply = mix64(mix64(seed) + salt + 1) | 1U;
      rounds_[round].inverse = odd_inverse(rounds_[round].multiply);
    }
  }

  SPARSESYNC_HOST_DEVICE constexpr std::int64_t rows() const {
    return static_cast<std::int64_t>(rows_);
  }

  /// Constants of a round of forward() and backward(), for implementations that process several
  /// rows at a time. Arithmetic is modulo 2^b, so the lowest b bits of each constant suffice.
  struct Round {
    std::uint64_t add = 0;
    std::uint64_t multiply = 1;
    std::uint64_t inverse = 1;
  };
  /// @param number  in [0, kRounds)
  SPARSESYNC_HOST_DEVICE constexpr Round round(int number) const { return rounds_[number]; }
  SPARSESYNC_HOST_DEVICE constexpr std::uint64_t mask() const { return mask_; }
  SPARSESYNC_HOST_DEVICE constexpr unsigned shift() const { return shift_; }

  /// Returns π(row), in [0, R).
  /// @param row  in [0, R)
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t forward(std::int64_t row) const {
    auto x = static_cast<std::uint64_t>(row);
    do {
      for (const Round& round : rounds_) {
        x = (x + round.add) & mask_;
        x = x ^ (x >> shift_);
        x = (x * round.multiply) & mask_;
      }
      x = x ^ (x >> shift_);
    } while (x >= rows_);
    return static_cast<std::int64_t>(x);
  }

  /// Returns π⁻¹(image), in [0, R).
  /// @param image  in [0, R)
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t backward(std::int64_t image) const {
    auto x = static_cast<std::uint64_t>(image);
    do {
      x = x ^ (x >> shift_);
      for (int round = kRounds - 1; round >= 0; --round) {
        x = (x * rounds_[round].inverse) & mask_;
        x = x ^ (x >> shift_);
        x = (x - rounds_[round].add) & mask_;
      }
    } while (x >= rows_);
    return static_cast<std::int64_t>(x);
  }

 private:
  /// Returns the inverse of an odd number modulo 2^64, by Newton's iteration. Each step doubles the
  /// number of correct bits.
  SPARSESYNC_HOST_DEVICE static constexpr std::uint64_t odd_inverse(std::uint64_t odd) {
    std::uint64_t inverse = odd;  // correct in the lowest 3 bits
    for (int step = 0; step < 5; ++step) inverse *= 2U - odd * inverse;
    return inverse;
  }

  // The operation x ^ (x >> s) is its own inverse: s >= b / 2 leaves the upper half unchanged.
  std::uint64_t rows_;
  std::uint64_t mask_ = 0;
  unsigned shift_ = 1;
  Round rounds_[kRounds] = {};
};

}  // namespace sparsesync
