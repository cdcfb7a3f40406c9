// The Elias-Fano index code: `count` increasing numbers below `universe` in about
// log2(universe / count) + 2 bits each (Elias 1974; Fano 1971).
//
// A number is cut into its `low_bits` lowest bits and the rest. First come the high parts: number i
// sets bit high_i + i of a bit string. Then come the low parts, one after another. Bits count from
// the lowest of each byte on.
#pragma once

#include <cstdint>

#include "kernels/base/bits.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// The high parts as a bit string, the low parts behind it.
struct EliasFano {
  static constexpr const char* name = "elias_fano";

  /// How many bytes each part has.
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

  /// The layout with the fewest bytes; the fewest low bits where they tie. Both ends compute it
  /// from numbers that they know, so none of it is sent.
  /// @pre count <= universe <= 2^62
  SPARSESYNC_HOST_DEVICE static constexpr Layout layout(std::uint64_t universe,
                                                        std::uint64_t count) {
    Layout best{universe, count, 0};
    if (count == 0) return best;
    // count · low_bits + (universe - 1) >> low_bits is convex, with its minimum beside
    // log2(universe / count); but both parts are rounded up to bytes, which moves it where there
    // are few indices.
    const int past = bit_width_below(universe / count + 1) + 1;
    const int all = bit_width_below(universe);  // with as many the high parts are 0
    for (int low_bits = 1; low_bits <= past && low_bits <= all; ++low_bits) {
      const Layout candidate{universe, count, low_bits};
      if (candidate.bytes() < best.bytes()) best = candidate;
    }
    return best;
  }

  /// Of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index universe, Index count) {
    return static_cast<Index>(
        layout(static_cast<std::uint64_t>(universe), static_cast<std::uint64_t>(count)).bytes());
  }
};

}  // namespace sparsesync
