// Touches of each row over many steps, and a fit of Zipf's law to them.
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

/// A row, and the number of workers that touched it in a step, or over all steps.
struct CountedRow {
  Index row = 0;
  std::int64_t touches = 0;
};

/// Accumulates the touches of many steps. Memory grows with the number of distinct touched rows,
/// not with the size of the tensor or the number of steps.
class TouchCounts {
 public:
  /// Adds the counts of some rows, in any order.
  void add(std::span<const CountedRow> rows);
  /// Returns all touched rows, increasing; valid until the next add().
  std::span<const CountedRow> rows();
  /// Returns the sum of all counts.
  std::int64_t touches() const { return touches_; }

 private:
  void merge();

  std::vector<CountedRow> merged_;   // increasing
  std::vector<CountedRow> pending_;  // not merged yet: no more than `merged_`, or than 65,536
  std::int64_t touches_ = 0;
};

/// Pairs {touches, number of rows with that many touches}; touches increase from 1 on.
using CountsOfCounts = std::vector<std::pair<std::int64_t, std::int64_t>>;
/// Counts rows by their touches.
/// @param rows  distinct, in any order
CountsOfCounts counts_of_counts(std::span<const CountedRow> rows);

/// Returns the `most` rows with the most touches, in decreasing order. Of rows with equal touches,
/// the lower row comes first.
std::vector<CountedRow> hottest(std::span<const CountedRow> rows, std::size_t most);

/// Zipf's law: the r-th most frequent row (r = 1, 2, ..., rows) is drawn r^-s times as often as the
/// most frequent one. One worker touches it in one step with probability
/// p(r) = 1 - exp(-scale · r^-s).
struct ZipfLaw {
  double s = 0;
  Interval ci;  // 95% confidence interval of s
};

/// Fits Zipf's law by maximum likelihood.
///
/// A row's rank r is unknown, and the counts do not determine it. A row that was touched c times of
/// N may therefore have any rank. Its probability is the mean of C(N, c) p(r)^c (1 - p(r))^(N - c)
/// over r. For each s, `scale` makes the expected number of touches equal the observed one. The
/// interval of s follows from the likelihood ratio (Wilks; docs/tools/profile.md).
/// @param rows     number of rows of the tensor, touched or not
/// @param counts   counts of the touched rows
/// @param samples  N: workers times steps
/// @return nothing if s is undetermined: fewer than two rows were touched, every sample touched all
///         of them, or the likelihood has no peak
std::optional<ZipfLaw> fit_zipf(Index rows, const CountsOfCounts& counts, std::int64_t samples);

}  // namespace sparsesync
