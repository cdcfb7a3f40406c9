// Random rows from the distributions of synthetic traces: log-uniform, and distinct rows from
// Zipf's law.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// Largest exponent of draw_distinct_zipf(). Beyond it, the draw is always the first rows.
inline constexpr double kMaxZipf = 1000;
/// Largest number of rows of draw_distinct_zipf().
inline constexpr Index kMaxDrawnRows = Index{1} << 28U;

/// A counter-based random number generator. Each key gives another sequence, which is the same on
/// every machine.
class CounterRandom {
 public:
  explicit CounterRandom(std::uint64_t key) : key_(key) {}

  /// Returns 64 random bits.
  std::uint64_t next();
  /// Returns a uniform number in (0, 1), an odd multiple of 2^-53. It is never 0 or 1.
  double uniform();
  /// Returns a positive number from the exponential distribution with mean 1.
  double exponential();

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

/// Returns one row of [0, rows): floor(exp(u · ln(rows + 1))) - 1, as TensorFlow's log-uniform
/// candidate sampler.
/// @param rows  at least 1
Index log_uniform_draw(CounterRandom& random, Index rows);

/// Draws `count` distinct rows of [0, rows), sorted. The distribution is that of successive draws
/// without replacement, where row r has weight (r + 1)^-s. It is exact for every s. The time is
/// O(count · log count), whatever the number of rows.
///
/// Successive draws equal the order of arrivals if row r arrives after an exponential time with
/// rate (r + 1)^-s (Efraimidis and Spirakis, IPL 97(5), 2006). The first rows, the head, each get
/// such a time. All other rows together are one Poisson process. Its events arrive at the tail's
/// total rate, and each event picks a row by rejection-inversion (Hörmann and Derflinger, ACM
/// TOMACS 6(3), 1996). A row that was picked before is skipped. With a head of twice `count` rows,
/// at most 1.4 · count events are expected, because at least half of the head has not arrived.
/// @param head  number of rows in the head; 0: chosen by this function
/// @pre 1 <= rows, 0 <= count <= min(rows, kMaxDrawnRows), 0 <= s <= kMaxZipf
std::vector<Index> draw_distinct_zipf(CounterRandom& random, Index rows, Index count, double s,
                                      Index head = 0);

}  // namespace sparsesync
