// Random rows by the laws that traces are made of: log-uniform, and distinct ones by Zipf's law.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// The largest exponent that draw_distinct_zipf() takes: beyond it the draw is the first rows in
/// order.
inline constexpr double kMaxZipf = 1000;
/// The most rows that it draws.
inline constexpr Index kMaxDrawnRows = Index{1} << 28U;

/// Numbers from a counter and a key: the same on every machine, for each key another sequence.
class CounterRandom {
 public:
  explicit CounterRandom(std::uint64_t key) : key_(key) {}

  /// Any number of 64 bits.
  std::uint64_t next();
  /// In (0, 1), never 0 or 1: multiples of 2^-53.
  double uniform();
  /// From the exponential distribution of mean 1; positive.
  double exponential();

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

/// One row of [0, rows), floor(exp(u · ln(rows + 1))) - 1: TensorFlow's log-uniform candidate
/// sampler.
/// @param rows  1 or more
Index log_uniform_draw(CounterRandom& random, Index rows);

/// `count` distinct rows of [0, rows), sorted, by the law of successive draws without replacement
/// where row r has weight (r + 1)^-s: exact for every s, at a cost of O(count · log count) for any
/// number of rows.
///
/// Successive draws are the order of arrivals where row r arrives after an exponential time of rate
/// (r + 1)^-s (Efraimidis and Spirakis, IPL 97(5), 2006). The first rows, the head, get such a time
/// each. All others together are one Poisson process: its events come at the tail's total rate, and
/// each picks a row by rejection-inversion (Hörmann and Derflinger, ACM TOMACS 6(3), 1996); one
/// that came before is passed over. With a head of twice `count` rows at most 1.4 · count events
/// are expected, because half of the head at least has not arrived.
/// @param head  rows of the head; 0: chosen here
/// @pre 1 <= rows, 0 <= count <= min(rows, kMaxDrawnRows), 0 <= s <= kMaxZipf
std::vector<Index> draw_distinct_zipf(CounterRandom& random, Index rows, Index count, double s,
                                      Index head = 0);

}  // namespace sparsesync
