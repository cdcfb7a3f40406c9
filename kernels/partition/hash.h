// The keyed hashes of Zen's schemes (OSDI 2025). They determine the partition of a row, and the
// cells of the partition's memory that the row tries. Host and device share them.
#pragma once

#include <cstdint>

#include "kernels/base/bits.h"

namespace sparsesync {

/// Computes the 64-bit finalizer of MurmurHash3 (fmix64; Austin Appleby, public domain).
SPARSESYNC_HOST_DEVICE constexpr std::uint64_t murmur_fmix64(std::uint64_t x) {
  x = (x ^ (x >> 33U)) * 0xFF51AFD7ED558CCDU;
  x = (x ^ (x >> 33U)) * 0xC4CEB9FE1A85EC53U;
  return x ^ (x >> 33U);
}

/// The hash functions h0, h1, ..., hk of Zen's Algorithm 1: h_i(row) = fmix64(row ^ key_i). The k +
/// 1 keys are derived from one seed that all workers share.
class RowHash {
 public:
  /// k: cells that a row tries before it goes to serial memory (the paper's setting).
  static constexpr int kRehashes = 3;

  /// Derives the keys.
  /// @param partitions  n >= 1
  /// @param seed        the same on all workers
  SPARSESYNC_HOST_DEVICE constexpr RowHash(std::int64_t partitions, std::uint64_t seed)
      : partitions_(static_cast<std::uint64_t>(partitions)) {
    for (int i = 0; i <= kRehashes; ++i) {
      keys_[i] = mix64(mix64(seed) + static_cast<std::uint64_t>(i));
    }
  }

  SPARSESYNC_HOST_DEVICE constexpr std::int64_t partitions() const {
    return static_cast<std::int64_t>(partitions_);
  }

  /// Returns h_which(row) before the modulo, for implementations with a faster division.
  /// @param which  in [0, kRehashes]
  SPARSESYNC_HOST_DEVICE constexpr std::uint64_t mixed(int which, std::int64_t row) const {
    return murmur_fmix64(static_cast<std::uint64_t>(row) ^ keys_[which]);
  }

  /// Returns h0(row), in [0, partitions()).
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t partition(std::int64_t row) const {
    return static_cast<std::int64_t>(mixed(0, row) % partitions_);
  }

  /// Returns h_(attempt + 1)(row), in [0, cells).
  /// @param attempt  in [0, kRehashes)
  SPARSESYNC_HOST_DEVICE constexpr std::int64_t cell(int attempt, std::int64_t row,
                                                     std::int64_t cells) const {
    return static_cast<std::int64_t>(mixed(attempt + 1, row) % static_cast<std::uint64_t>(cells));
  }

 private:
  std::uint64_t partitions_;
  std::uint64_t keys_[kRehashes + 1] = {};
};

}  // namespace sparsesync
