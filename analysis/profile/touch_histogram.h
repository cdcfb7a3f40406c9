// How often each row was touched, over many steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/views.h"

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

}  // namespace sparsesync
