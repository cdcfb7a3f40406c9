// Counts of how often each row was touched over many steps, and Zipf's law fitted to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/views.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// A row, and how many workers touched it: in a step, or over all of them.
struct CountedRow {
  Index row = 0;
  std::int64_t touches = 0;
};

/// The sum of the counts of many steps. Takes memory for the rows that were touched, whatever the
/// tensor's size and the number of steps.
class TouchCounts {
 public:
  /// Adds the counts of some rows, in any order.
  void add(std::span<const CountedRow> rows);
  /// All rows that were touched, increasing; valid until add().
  std::span<const CountedRow> rows();
  /// The sum of all counts.
  std::int64_t touches() const { return touches_; }

 private:
  void merge();

  std::vector<CountedRow> merged_;   // increasing
  std::vector<CountedRow> pending_;  // not merged yet: fewer than `merged_`, or few
  std::int64_t touches_ = 0;
};

/// How many rows were touched how often: {touches, rows}, touches increasing from 1 on.
using CountsOfCounts = std::vector<std::pair<std::int64_t, std::int64_t>>;
/// Those of rows that stand there once each, in any order.
CountsOfCounts counts_of_counts(std::span<const CountedRow> rows);

/// Those that were touched most, the first of them first; of equals the one with the lower number.
std::vector<CountedRow> hottest(std::span<const CountedRow> rows, std::size_t most);

/// The law that row number r by frequency (1, 2, ..., rows) is drawn r^-s as often as the first: in
/// one worker's step it is touched with probability p(r) = 1 - exp(-scale · r^-s).
struct ZipfLaw {
  double s = 0;
  Interval ci;  // of s, 95%
};

/// The law that makes what was seen most likely. A row touched c times of N is one of all rows, and
/// no order is taken from the counts themselves: its probability is the mean over r of the binomial
/// C(N, c) p(r)^c (1 - p(r))^(N - c). `scale` is, for each s, that with which as many touches are
/// expected as were seen; s has the largest likelihood then, and its interval is where the
/// likelihood's ratio to it says so (Wilks; docs/tools/profile.md).
/// @param rows     of the tensor, touched or not
/// @param counts   of those that were touched
/// @param samples  N: workers times steps
/// @return nothing where s is open: where fewer than two rows were touched, or all of them each
///         time, or the likelihood has no peak
std::optional<ZipfLaw> fit_zipf(Index rows, const CountsOfCounts& counts, std::int64_t samples);

}  // namespace sparsesync
