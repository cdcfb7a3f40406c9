// Rows that workers share at one step: unions of groups, and intersections of pairs.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/profile/touch_histogram.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// The groups and pairs of workers to compare.
struct SharedRowsQuestion {
  // Sizes k of aligned groups (0 to k - 1, k to 2k - 1, ...; an incomplete last one is left out).
  std::vector<int> group_sizes;
  // Workers to compare pair by pair: increasing.
  std::vector<int> paired;
};

/// The shared rows of a range. add() combines consecutive ranges.
struct SharedRows {
  std::vector<CountedRow> united;              // rows that some worker touched, increasing
  std::vector<std::int64_t> united_in_groups;  // [group size]: sum of the unions of all groups
  // [i · paired + j]: rows that the i-th and the j-th paired worker share, i < j
  std::vector<std::int64_t> common;

  /// Adds the shared rows of the next range.
  void add(const SharedRows& next);
};

/// Finds the rows that workers share in a range of rows.
/// @param sets  one for each worker, increasing
SharedRows shared_rows(const IndexSets& sets, IndexRange range, const SharedRowsQuestion& question);

/// Splits [0, rows) into `parts` consecutive ranges with about the same number of touches.
std::vector<IndexRange> even_work(const IndexSets& sets, Index rows, int parts);

/// Returns |A ∩ B| / min(|A|, |B|); 0 if a set is empty.
double overlap_ratio(std::int64_t common, std::int64_t a, std::int64_t b);

}  // namespace sparsesync
