// ctest: NOT_QUICK DEVICES
// partition() and rows_at(): compared with a stable sort by (group, position), and round trips.
#include "kernels/partition/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/threads.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Partition = OperationTest;
using RowsAt = OperationTest;

void expect_partition(const Context& context, const RowGroups& groups,
                      const std::vector<Index>& rows, SortWorkspace& workspace) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const RowGroups::Place left = groups.locate(rows[a]);
    const RowGroups::Place right = groups.locate(rows[b]);
    return std::pair(left.group, left.position) < std::pair(right.group, right.position);
  });
  std::vector<Index> begin(static_cast<std::size_t>(groups.groups()) + 1);
  for (const Index row : rows) ++begin[static_cast<std::size_t>(groups.locate(row).group) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());

  std::vector<Index> positions(rows.size(), -1);
  std::vector<Index> sources(rows.size(), -1);
  std::vector<Index> group_begin(begin.size(), -1);
  partition(context, groups, rows, positions, sources, group_begin, workspace);
  ASSERT_EQ(group_begin, begin);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(sources[i], static_cast<Index>(order[i])) << i;
    ASSERT_EQ(positions[i], groups.locate(rows[order[i]]).position) << i;
  }
  for (std::size_t group = 0; group + 1 < begin.size(); ++group) {
    const auto first = static_cast<std::size_t>(group_begin[group]);
    const auto size = static_cast<std::size_t>(group_begin[group + 1]) - first;
    std::vector<Index> back(size, -1);
    rows_at(context, groups, static_cast<Index>(group), std::span(positions).subspan(first, size),
            back);
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_EQ(back[i], rows[static_cast<std::size_t>(sources[first + i])]);
      ASSERT_TRUE(i == 0 || positions[first + i - 1] < positions[first + i]) << "not increasing";
    }
  }
}

TEST_F(Partition, SortsByGroupAndPosition) {
  Random random(testing::seed());
  SortWorkspace workspace(context_);
  for (const Index rows : {Index{1}, Index{2}, Index{7}, Index{64}, Index{1000}, Index{793'471},
                           Index{1} << 33, Index{1} << 61}) {
    for (const Index groups : {1, 2, 3, 16, 1000}) {
      const RowGroups row_groups(
          {.rows = rows, .groups = groups, .offset = random.below(groups), .seed = random.next()});
      const Index most = std::min<Index>(rows, 500);
      for (const Index count : {Index{0}, Index{1}, most / 2, most}) {
        SCOPED_TRACE(::testing::Message()
                     << count << " of " << rows << " rows, " << groups << " groups");
        std::vector<Index> touched = testing::distinct_rows(random, rows, count);
        expect_partition(context_, row_groups, touched, workspace);
        // Rows do not have to be sorted.
        for (std::size_t i = touched.size(); i > 1; --i) {
          std::swap(touched[i - 1],
                    touched[static_cast<std::size_t>(random.below(static_cast<Index>(i)))]);
        }
        expect_partition(context_, row_groups, touched, workspace);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Row counts around 32 bits: images, keys and groups all fit into 32 bits, or some do not.
constexpr Index kTwo32 = Index{1} << 32;
const std::vector<Index> kManyRows{
    100'000'007, (Index{1} << 27) - 1, (Index{1} << 26) + 1, kTwo32 - 1, kTwo32, kTwo32 + 1};

TEST_F(Partition, OfManyRows) {
  Random random(testing::seed());
  SortWorkspace workspace(context_);
  for (const Index rows : kManyRows) {
    for (const Index groups : {Index{1}, Index{7}, Index{64}, Index{1001}}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << groups << " groups");
      const RowGroups row_groups(
          {.rows = rows, .groups = groups, .offset = random.below(groups), .seed = random.next()});
      for (const Index count : {31, 32, 33, 256, 257, 1024, 4096, 4097, 40'013}) {
        expect_partition(context_, row_groups, testing::distinct_rows(random, rows, count),
                         workspace);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Partition, OfManyRowsIsTheSameForEveryNumberOfThreads) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the CPU implementation uses threads";
  Random random(testing::seed());
  for (const Index rows : kManyRows) {
    for (const Index groups : {Index{1}, Index{7}, Index{64}, Index{1001}}) {
      const RowGroups row_groups(
          {.rows = rows, .groups = groups, .offset = random.below(groups), .seed = random.next()});
      const std::vector<Index> touched = testing::distinct_rows(random, rows, 40'013);
      for (const int count : {1, 2, 3, 8}) {
        SCOPED_TRACE(::testing::Message()
                     << rows << " rows, " << groups << " groups, " << count << " threads");
        Threads threads(count);
        const Context context(memory_, threads);
        SortWorkspace workspace(context);
        expect_partition(context, row_groups, touched, workspace);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Partition, FindsTheGroupOfEachRow) {
  Random random(testing::seed());
  for (const Index rows : {Index{1}, Index{1000}, kTwo32, kTwo32 + 1, Index{1} << 61}) {
    for (const Index groups : {Index{1}, Index{3}, Index{1000}, (Index{1} << 31) - 1}) {
      const RowGroups row_groups(
          {.rows = rows, .groups = groups, .offset = groups - 1, .seed = random.next()});
      const std::vector<Index> some =
          testing::distinct_rows(random, rows, std::min<Index>(rows, 300));
      std::vector<std::int32_t> found(some.size(), -1);
      find_groups(context_, row_groups, some, found);
      for (std::size_t i = 0; i < some.size(); ++i) {
        ASSERT_EQ(found[i], row_groups.locate(some[i]).group) << rows << " rows, " << groups;
      }
    }
  }
  std::vector<std::int32_t> one(1);
  EXPECT_THROW(find_groups(context_, RowGroups({.rows = 3}), {}, one), ContractError);
}

TEST_F(Partition, EvenRangesDivideSomeOfManyRows) {
  Random random(testing::seed());
  for (const Index rows : {Index{5000}, Index{1} << 40}) {
    for (const Index parts : {1, 3, 64, 1000, 6000}) {
      const EvenRanges ranges(rows, parts);
      for (const Index count : {32, 257, 4097}) {
        const std::vector<Index> some = testing::distinct_rows(random, rows, count);
        std::vector<Index> begin(static_cast<std::size_t>(parts) + 1, -1);
        std::vector<Index> indices(some.size(), -1);
        divide_evenly(context_, ranges, some, indices, begin);
        ASSERT_EQ(begin.front(), 0);
        ASSERT_EQ(begin.back(), count);
        for (std::size_t i = 0; i < some.size(); ++i) {
          const Index part = ranges.part_of(some[i]);
          ASSERT_EQ(indices[i], some[i] - ranges.range(part).begin);
          ASSERT_LE(begin[static_cast<std::size_t>(part)], static_cast<Index>(i));
          ASSERT_GT(begin[static_cast<std::size_t>(part) + 1], static_cast<Index>(i));
        }
      }
    }
  }
}

TEST_F(Partition, AcceptsMoreGroupsThanRows) {
  Random random(testing::seed());
  SortWorkspace workspace(context_);
  for (const Index groups : {Index{100'000}, Index{1} << 20}) {
    const RowGroups row_groups(
        {.rows = 1000, .groups = groups, .offset = groups - 1, .seed = random.next()});
    std::vector<Index> rows(1000);
    std::iota(rows.begin(), rows.end(), Index{0});
    std::vector<Index> positions(rows.size());
    std::vector<Index> sources(rows.size());
    std::vector<Index> begin(static_cast<std::size_t>(groups) + 1);
    partition(context_, row_groups, rows, positions, sources, begin, workspace);
    EXPECT_EQ(positions, std::vector<Index>(rows.size(), 0));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Index group = row_groups.locate(rows[static_cast<std::size_t>(sources[i])]).group;
      EXPECT_EQ(begin[static_cast<std::size_t>(group)], static_cast<Index>(i));
      EXPECT_EQ(begin[static_cast<std::size_t>(group) + 1], static_cast<Index>(i) + 1);
    }
  }
}

TEST_F(Partition, OfAllRowsFillsEveryPosition) {
  SortWorkspace workspace(context_);
  const RowGroups groups({.rows = 103, .groups = 4, .offset = 1, .seed = 5});
  std::vector<Index> rows(103);
  std::iota(rows.begin(), rows.end(), Index{0});
  std::vector<Index> positions(103);
  std::vector<Index> sources(103);
  std::vector<Index> begin(5);
  partition(context_, groups, rows, positions, sources, begin, workspace);
  for (std::size_t group = 0; group < 4; ++group) {
    // Images are 0 to 102, so residue 3 has one row less. The offset makes residue r group r + 1.
    EXPECT_EQ(begin[group + 1] - begin[group], group == 0 ? 25 : 26) << group;
    for (Index i = begin[group]; i < begin[group + 1]; ++i) {
      EXPECT_EQ(positions[static_cast<std::size_t>(i)], i - begin[group]);
    }
  }
}

TEST_F(Partition, RequiresAnOutputElementForEveryBoundary) {
  SortWorkspace workspace(context_);
  std::vector<Index> begin(4);
  const RowGroups groups({.rows = 10, .groups = 4, .seed = 1});
  EXPECT_THROW(partition(context_, groups, {}, {}, {}, begin, workspace), ContractError);
}

TEST_F(RowsAt, RejectsPositionsWithoutARow) {
  // 10 rows in 4 groups: the groups of residues 0 and 1 have 3 rows, those of 2 and 3 have 2.
  const RowGroups groups({.rows = 10, .groups = 4, .seed = 1});
  std::vector<Index> rows(1);
  const auto at = [&](Index group, Index position) {
    const std::vector<Index> positions{position};
    rows_at(context_, groups, group, positions, rows);
  };
  EXPECT_NO_THROW(at(0, 2));
  EXPECT_NO_THROW(at(1, 2));
  EXPECT_THROW(at(2, 2), CorruptDataError);
  EXPECT_THROW(at(3, 2), CorruptDataError);
  EXPECT_THROW(at(0, 3), CorruptDataError);
  EXPECT_THROW(at(0, -1), CorruptDataError);
  EXPECT_THROW(at(0, Index{1} << 32), CorruptDataError);  // 0 if it were truncated to 32 bits
  // With more groups than rows, some groups are empty.
  const RowGroups many({.rows = 3, .groups = 8, .seed = 1});
  const std::vector<Index> first{0};
  for (Index group = 0; group < 8; ++group) {
    if (group < 3) {
      EXPECT_NO_THROW(rows_at(context_, many, group, first, rows));
    } else {
      EXPECT_THROW(rows_at(context_, many, group, first, rows), CorruptDataError);
    }
  }
}

TEST_F(Partition, EvenRangesDivideRowsByRowNumber) {
  for (const Index rows : {1, 2, 5, 16, 100, 103}) {
    for (const Index parts : {1, 2, 3, 7, 16, 200}) {
      const EvenRanges ranges(rows, parts);
      std::vector<Index> all(static_cast<std::size_t>(rows));
      std::iota(all.begin(), all.end(), Index{0});
      std::vector<Index> begin(static_cast<std::size_t>(parts) + 1, -1);
      std::vector<Index> indices(all.size(), -1);
      divide_evenly(context_, ranges, all, indices, begin);
      EXPECT_EQ(begin.front(), 0);
      EXPECT_EQ(begin.back(), rows);
      for (Index part = 0; part < parts; ++part) {
        const IndexRange range = ranges.range(part);
        EXPECT_EQ(range, (IndexRange{begin[static_cast<std::size_t>(part)],
                                     begin[static_cast<std::size_t>(part) + 1]}));
        EXPECT_TRUE(range.size() == rows / parts || range.size() == rows / parts + 1);
        for (Index row = range.begin; row < range.end; ++row) {
          EXPECT_EQ(ranges.part_of(row), part) << row << " of " << rows;
          EXPECT_EQ(indices[static_cast<std::size_t>(row)], row - range.begin);
        }
      }
    }
  }
  // A few rows of a large range, and none at all.
  const EvenRanges ranges(Index{1} << 40, 4);
  const std::vector<Index> rows{5, (Index{1} << 38) - 1, Index{1} << 38, Index{3} << 38};
  std::vector<Index> begin(5);
  std::vector<Index> indices(4);
  divide_evenly(context_, ranges, rows, indices, begin);
  EXPECT_EQ(begin, (std::vector<Index>{0, 2, 3, 3, 4}));
  EXPECT_EQ(indices, (std::vector<Index>{5, (Index{1} << 38) - 1, 0, 0}));
  divide_evenly(context_, ranges, {}, {}, begin);
  EXPECT_EQ(begin, (std::vector<Index>{0, 0, 0, 0, 0}));
  EXPECT_THROW(divide_evenly(context_, EvenRanges(10, 3), {}, {}, begin), ContractError);
}

}  // namespace
}  // namespace sparsesync
