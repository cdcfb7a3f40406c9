// Counts of touches, compared with a std::map, for any order of rows.
#include "analysis/profile/touch_histogram.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

std::map<Index, std::int64_t> map_of(std::span<const CountedRow> rows) {
  std::map<Index, std::int64_t> counts;
  for (const CountedRow& each : rows) counts[each.row] += each.touches;
  EXPECT_EQ(counts.size(), rows.size()) << "a row is listed twice";
  return counts;
}

TEST(TouchCounts, are_the_sums_for_any_order_of_rows) {
  Random random(seed());
  TouchCounts counts;
  std::map<Index, std::int64_t> expected;
  std::int64_t touches = 0;
  // Enough rows for several merges, with checks in between.
  for (int step = 0; step < 60; ++step) {
    std::vector<CountedRow> rows;
    for (Index i = 0; i < 1 + random.below(8000); ++i) {
      rows.push_back({random.below(Index{1} << (1 + random.below(40))), 1 + random.below(5)});
      expected[rows.back().row] += rows.back().touches;
      touches += rows.back().touches;
    }
    counts.add(rows);
    if (step % 17 == 0) {
      EXPECT_EQ(map_of(counts.rows()), expected);
    }
  }
  EXPECT_EQ(map_of(counts.rows()), expected);
  EXPECT_TRUE(std::is_sorted(counts.rows().begin(), counts.rows().end(),
                             [](const auto& a, const auto& b) { return a.row < b.row; }));
  EXPECT_EQ(counts.touches(), touches);
}

TEST(TouchCounts, of_no_rows_are_empty) {
  TouchCounts counts;
  counts.add({});
  EXPECT_TRUE(counts.rows().empty());
  EXPECT_EQ(counts.touches(), 0);
  EXPECT_TRUE(counts_of_counts({}).empty());
  EXPECT_TRUE(hottest({}, 3).empty());
}

TEST(TouchCounts, have_counts_of_counts) {
  const std::vector<CountedRow> rows{{1, 3}, {2, 1}, {5, 3}, {9, 3}, {1'000'000'000'000, 1}};
  EXPECT_EQ(counts_of_counts(rows), (CountsOfCounts{{1, 2}, {3, 3}}));
}

TEST(TouchCounts, of_equally_hot_rows_list_lower_rows_first) {
  const std::vector<CountedRow> rows{{1, 3}, {2, 7}, {5, 3}, {9, 3}, {11, 9}};
  std::vector<Index> found;
  for (const CountedRow& each : hottest(rows, 4)) found.push_back(each.row);
  EXPECT_EQ(found, (std::vector<Index>{11, 2, 1, 5}));
  EXPECT_EQ(hottest(rows, 99).size(), rows.size());
  EXPECT_TRUE(hottest(rows, 0).empty());
}

}  // namespace
}  // namespace sparsesync::testing
