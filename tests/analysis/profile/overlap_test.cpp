// Rows that workers share, compared with sets of the standard library, in one range or in many.
#include "analysis/profile/overlap.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/index_sets.h"

namespace sparsesync::testing {
namespace {

/// Counts shared rows of all ranges in the simplest possible way.
SharedRows naive(const OwnedIndexSets& sets, const SharedRowsQuestion& question) {
  SharedRows found;
  std::map<Index, std::int64_t> counts;
  for (const auto& set : sets) {
    for (const Index row : set) ++counts[row];
  }
  for (const auto& [row, touches] : counts) found.united.push_back({row, touches});
  for (const int size : question.group_sizes) {
    std::size_t united = 0;
    for (std::size_t begin = 0; begin + static_cast<std::size_t>(size) <= sets.size();
         begin += static_cast<std::size_t>(size)) {
      std::set<Index> group;
      for (int i = 0; i < size; ++i) {
        const auto& set = sets[begin + static_cast<std::size_t>(i)];
        group.insert(set.begin(), set.end());
      }
      united += group.size();
    }
    found.united_in_groups.push_back(static_cast<std::int64_t>(united));
  }
  for (std::size_t a = 0; a < question.paired.size(); ++a) {
    for (std::size_t b = 0; b < question.paired.size(); ++b) {
      std::vector<Index> common;
      const auto& one = sets[static_cast<std::size_t>(question.paired[a])];
      const auto& other = sets[static_cast<std::size_t>(question.paired[b])];
      std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                            std::back_inserter(common));
      found.common.push_back(a < b ? std::ssize(common) : 0);
    }
  }
  return found;
}

void expect_same(const SharedRows& found, const SharedRows& expected) {
  ASSERT_EQ(found.united.size(), expected.united.size());
  for (std::size_t i = 0; i < found.united.size(); ++i) {
    EXPECT_EQ(found.united[i].row, expected.united[i].row);
    EXPECT_EQ(found.united[i].touches, expected.united[i].touches);
  }
  EXPECT_EQ(found.united_in_groups, expected.united_in_groups);
  EXPECT_EQ(found.common, expected.common);
}

TEST(SharedRows, match_plain_sets_for_any_number_of_ranges) {
  Random random(seed());
  for (const int workers : {1, 2, 3, 5, 8, 13}) {
    const Index rows = 500;
    OwnedIndexSets sets = random_sets(random, rows, workers, 60);
    if (workers > 2) sets[1].clear();
    SharedRowsQuestion question;
    for (int size = 1; size <= workers; ++size) question.group_sizes.push_back(size);
    for (int worker = 0; worker < workers; worker += 2) question.paired.push_back(worker);
    const SharedRows expected = naive(sets, question);
    for (const int parts : {1, 2, 7, 100}) {
      SCOPED_TRACE(workers * 1000 + parts);
      const std::vector<IndexRange> ranges = even_work(views_of(sets), rows, parts);
      ASSERT_EQ(std::ssize(ranges), parts);
      SharedRows found;
      Index next = 0;
      for (const IndexRange& range : ranges) {
        EXPECT_EQ(range.begin, next);
        next = range.end;
        found.add(shared_rows(views_of(sets), range, question));
      }
      EXPECT_EQ(next, rows);
      expect_same(found, expected);
    }
  }
}

TEST(SharedRows, of_empty_sets_are_none) {
  const OwnedIndexSets sets(4);
  const SharedRowsQuestion question{{1, 2, 4}, {0, 1, 2, 3}};
  const std::vector<IndexRange> ranges = even_work(views_of(sets), 10, 3);
  EXPECT_EQ(ranges.back().end, 10);
  expect_same(shared_rows(views_of(sets), {0, 10}, question), naive(sets, question));
}

TEST(OverlapRatio, is_relative_to_the_smaller_set_and_0_if_that_is_empty) {
  EXPECT_EQ(overlap_ratio(3, 4, 6), 0.75);
  EXPECT_EQ(overlap_ratio(3, 6, 4), 0.75);
  EXPECT_EQ(overlap_ratio(0, 0, 5), 0);
  EXPECT_EQ(overlap_ratio(0, 0, 0), 0);
}

}  // namespace
}  // namespace sparsesync::testing
