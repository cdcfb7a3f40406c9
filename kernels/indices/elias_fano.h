// The Elias-Fano index code. It encodes `count` increasing numbers below `universe` in about
// log2(universe / count) + 2 bits each (Elias 1974; Fano 1971).
//
// Each number is split into its `low_bits` lowest bits and the rest. The high parts come first:
// number i sets bit high_i + i of a bit string. The low parts follow, one after another. Bits are
// numbered from the lowest bit of each byte.
#pragma once

#include <cstdint>

#include "kernels/base/bits.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// The Elias-Fano code: high parts as a bit string, followed by the low parts.
struct EliasFano {
  static constexpr const char* name = "elias_fano";

  /// Sizes of the two parts.
  struct Layout {
    std::uint64_t universe = 0;
    std::uint64_t count = 0;
    int low_bits = 0;

    SPARSESYNC_HOST_DEVICE constexpr std::uint64_t high_bits() const {
      return count == 0 ? 0 : count + ((universe - 1) >> static_cast<unsigned>(low_bits));
    }
    SPARSESYNC_HOST_DEVICE constexpr std::uint64_t high_bytes() const {
      return ceil_div<std::uint64_t>(high_bits(), 8);
    }
    SPARSESYNC_HOST_DEVICE constexpr std::uint64_t low_bytes() const {
      return ceil_div<std::uint64_t>(count * static_cast<unsigned>(low_bits), 8);
    }
    SPARSESYNC_HOST_DEVICE constexpr std::uint64_t bytes() const {
      return high_bytes() + low_bytes();
    }
  };

  /// Returns the layout with the fewest bytes; ties go to the fewest low bits. Both ends compute it
  /// from known numbers, so it is not sent.
  /// @pre count <= universe <= 2^62
  SPARSESYNC_HOST_DEVICE static constexpr Layout layout(std::uint64_t universe,
                                                        std::uint64_t count) {
    Layout best{universe, count, 0};
    if (count == 0) return best;
    // The sum count · low_bits + ((universe - 1) >> low_bits) is convex, with its minimum near
    // log2(universe / count). Both parts are rounded up to bytes, which moves the minimum if there
    // are few indices.
    const int past = bit_width_below(universe / count + 1) + 1;
    const int all = bit_width_below(universe);  // with this many low bits, the high parts are 0
    for (int low_bits = 1; low_bits <= past && low_bits <= all; ++low_bits) {
      const Layout candidate{universe, count, low_bits};
      if (candidate.bytes() < best.bytes()) best = candidate;
    }
    return best;
  }

  /// Returns the size in bytes of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index universe, Index count) {
    return static_cast<Index>(
        layout(static_cast<std::uint64_t>(universe), static_cast<std::uint64_t>(count)).bytes());
  }
};

}  // namespace sparsesync
