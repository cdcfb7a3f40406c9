// Which rows workers share at one step: the unions of groups of them, and what pairs have in
// common.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/profile/touch_histogram.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// What is looked for.
struct SharedRowsQuestion {
  // Of aligned groups (0 to k - 1, k to 2k - 1, ...; an incomplete last one is left out).
  std::vector<int> group_sizes;
  // Workers that are looked at pair by pair: increasing.
  std::vector<int> paired;
};

/// What is found in a range of rows. Ranges that follow each other add up: add().
struct SharedRows {
  std::vector<CountedRow> united;              // rows that some worker touched, increasing
  std::vector<std::int64_t> united_in_groups;  // [group size]: of all groups together
  std::vector<std::int64_t> common;            // [place of a · paired + place of b], a before b

  /// Adds those of the range that follows.
  void add(const SharedRows& next);
};

/// What the workers share of a range of rows.
/// @param sets  one for each worker, increasing
SharedRows shared_rows(const IndexSets& sets, IndexRange range, const SharedRowsQuestion& question);

/// `parts` ranges of [0, rows) that follow each other, in which about as much is touched.
std::vector<IndexRange> even_work(const IndexSets& sets, Index rows, int parts);

/// |A and B| / min(|A|, |B|); 0 where one is empty.
double overlap_ratio(std::int64_t common, std::int64_t a, std::int64_t b);

}  // namespace sparsesync
