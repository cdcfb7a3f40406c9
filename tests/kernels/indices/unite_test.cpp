// ctest: DEVICES RACES
// unite(), compared with unions of std::set.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/rows/aggregate.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

using Unite = OperationTest;

using Sets = std::vector<std::vector<Index>>;

std::vector<Index> united(const Context& context, IndexRange range, const Sets& sets,
                          AggregateWorkspace& workspace) {
  std::vector<std::span<const Index>> views(sets.begin(), sets.end());
  Index total = 0;
  for (const std::vector<Index>& set : sets) total += static_cast<Index>(set.size());
  const Index room = std::min(total, range.size());
  // Exactly the requested capacity, followed by a guard element.
  std::vector<Index> out(static_cast<std::size_t>(room + 1), -77);
  std::vector<Index> count(1, -1);
  unite(context, range, views, std::span(out).first(static_cast<std::size_t>(room)),
        Count(count.data()), workspace);
  EXPECT_TRUE(count[0] >= 0 && count[0] <= room) << count[0];
  EXPECT_EQ(out.back(), -77);
  out.resize(static_cast<std::size_t>(count[0]));
  return out;
}

std::vector<Index> expected_union(const Sets& sets) {
  std::set<Index> all;
  for (const std::vector<Index>& set : sets) all.insert(set.begin(), set.end());
  return {all.begin(), all.end()};
}

TEST_F(Unite, ByDirectAddressingAndByMerging) {
  AggregateWorkspace workspace(context_);
  const Sets sets{{0, 5, 63, 64}, {}, {5, 65, 127}, {0, 127}};
  const std::vector<Index> expected{0, 5, 63, 64, 65, 127};
  static_assert(unites_by_address(128, 9) && !unites_by_address(Index{1} << 40, 9));
  EXPECT_EQ(united(context_, {0, 128}, sets, workspace), expected);
  EXPECT_EQ(united(context_, {0, Index{1} << 40}, sets, workspace), expected);
}

TEST_F(Unite, OfEmptySetsIsEmpty) {
  AggregateWorkspace workspace(context_);
  for (const IndexRange range :
       {IndexRange{0, 0}, IndexRange{5, 6}, IndexRange{0, 1000}, IndexRange{7, Index{1} << 61}}) {
    EXPECT_TRUE(united(context_, range, {}, workspace).empty());
    EXPECT_TRUE(united(context_, range, {{}, {}}, workspace).empty());
  }
}

TEST_F(Unite, KeepsIndicesAtBothEndsOfTheRange) {
  AggregateWorkspace workspace(context_);
  for (const Index begin : {Index{0}, Index{1}, Index{63}, Index{1} << 50}) {
    for (const Index size :
         {Index{1}, Index{2}, Index{63}, Index{64}, Index{65}, Index{128}, Index{1} << 40}) {
      const Index end = begin + size;
      EXPECT_EQ(united(context_, {begin, end}, {{begin}}, workspace), (std::vector<Index>{begin}));
      EXPECT_EQ(united(context_, {begin, end}, {{end - 1}, {begin}, {end - 1}}, workspace),
                expected_union({{begin, end - 1}}));
    }
  }
}

TEST_F(Unite, OnBothSidesOfTheThreshold) {
  // The threshold is 1024 elements of the range per index. Test at it and just above it.
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  for (const Index total : {1, 10, 300}) {
    for (const Index range :
         {1024 * total - 1, 1024 * total, 1024 * (total + 1) - 1, 1024 * (total + 1)}) {
      EXPECT_EQ(unites_by_address(range, total), range < 1024 * (total + 1)) << range;
      Sets sets;
      Index left = total;
      while (left > 0) {
        const Index count = 1 + random.below(left);
        sets.push_back(distinct_rows(random, range, count));
        left -= count;
      }
      EXPECT_EQ(united(context_, {0, range}, sets, workspace), expected_union(sets)) << range;
    }
  }
}

TEST_F(Unite, OfRandomSets) {
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  int by_address = 0;
  int by_merging = 0;
  for (int round = 0; round < 300; ++round) {
    const Index size = 1 + random.below(Index{1} << random.below(41));
    const Index begin = random.below(Index{1} << 50);
    Sets sets(static_cast<std::size_t>(random.below(9)));
    Index total = 0;
    // Crowd the indices, so that sets overlap.
    const Index crowd = std::min<Index>(size, 1 + random.below(1000));
    for (std::vector<Index>& set : sets) {
      set = distinct_rows(random, crowd, random.below(crowd + 1));
      for (Index& index : set) index += begin + (size - crowd);
      total += static_cast<Index>(set.size());
    }
    ++(unites_by_address(size, total) ? by_address : by_merging);
    ASSERT_EQ(united(context_, {begin, begin + size}, sets, workspace), expected_union(sets))
        << sets.size() << " sets, " << total << " in a range of " << size;
  }
  EXPECT_GT(by_address, 20);
  EXPECT_GT(by_merging, 20);
}

TEST_F(Unite, AllocatesTheWorkspaceThatItReports) {
  Random random(testing::seed());
  for (const Index range : {Index{64'000}, Index{1} << 24, Index{1} << 40}) {
    const Sets sets{distinct_rows(random, range, 400), distinct_rows(random, range, 600)};
    HostMemory memory;
    const Context context(memory);
    AggregateWorkspace workspace(context);
    united(context, {0, range}, sets, workspace);
    const Index says = unite_workspace_bytes(range, 1000);
    EXPECT_GE(memory.in_use(), says) << range;
    EXPECT_LE(memory.in_use(), says + says / 8) << range;  // slack of a buffer
    const std::int64_t before = memory.allocations();
    united(context, {0, range}, sets, workspace);
    EXPECT_EQ(memory.allocations(), before) << "the second call allocates";
  }
}

TEST_F(Unite, RespectsTheBudget) {
  HostMemory memory(1000);
  const Context context(memory);
  AggregateWorkspace workspace(context);
  Random random(testing::seed());
  const Sets sets{distinct_rows(random, 100'000, 500)};
  const std::vector<std::span<const Index>> views(sets.begin(), sets.end());
  std::vector<Index> out(500);
  Index count = -1;
  EXPECT_THROW(unite(context, {0, 100'000}, views, out, Count(&count), workspace), BudgetError);
  EXPECT_THROW(unite(context, {0, Index{1} << 40}, views, out, Count(&count), workspace),
               BudgetError);
  // A smaller union still works.
  EXPECT_EQ(united(context, {0, 640}, {{1, 2}, {2, 639}}, workspace),
            (std::vector<Index>{1, 2, 639}));
}

TEST_F(Unite, RequiresCapacityForAllIndices) {
  AggregateWorkspace workspace(context_);
  const std::vector<Index> set{1, 2};
  const std::vector<std::span<const Index>> views{set, set};
  std::vector<Index> out(3);
  std::vector<Index> count(1, -1);
  EXPECT_THROW(unite(context_, {0, 100}, views, out, Count(count.data()), workspace),
               ContractError);
}

TEST_F(Unite, OfLargeSets) {
  // Many tiles and many blocks, for dense and sparse sets, by direct addressing and by merging.
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  struct Case {
    Index range;
    std::vector<Index> sizes;
  };
  for (const auto& [range, sizes] : std::vector<Case>{
           {200'000, {200'000, 1, 0, 150'000}},
           {200'001, {20'000, 50'000, 3'000}},
           {16'384 * 7, {40'000}},
           {3'000'000, {4'000, 9'000}},
           {Index{1} << 40, {10'000, 0, 9'999}},
           {Index{1} << 62, {4'096, 2'048}},
       }) {
    Sets sets;
    for (const Index size : sizes) sets.push_back(distinct_rows(random, range, size));
    // Duplicates appear once in the union.
    sets.push_back(sets.front());
    EXPECT_EQ(united(context_, {0, range}, sets, workspace), expected_union(sets)) << range;
  }
}

TEST_F(Unite, OfManySets) {
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  for (const Index range : {Index{5'000}, Index{1} << 40}) {
    Sets sets(1000);
    for (std::vector<Index>& set : sets) {
      set = distinct_rows(random, std::min<Index>(range, 5'000), random.below(12));
    }
    EXPECT_EQ(united(context_, {0, range}, sets, workspace), expected_union(sets)) << range;
  }
}

TEST_F(Unite, OnAGpuStaysInsideItsMemoryForInvalidIndices) {
  if (!testing::on_cuda()) GTEST_SKIP() << "undefined on the CPU; GPUs report decoder faults late";
  AggregateWorkspace workspace(context_);
  const IndexRange range{100, 200'000};
  const Sets sets{{-5, 0, 99, 100, 150}, {Index{1} << 62, 7, 199'999, 200'000, -1}};
  const std::vector<Index> inside = united(context_, range, sets, workspace);
  EXPECT_EQ(inside, united(context_, {100, Index{1} << 40}, {{100, 150, 199'999}}, workspace));
  for (const Index index : united(context_, {100, Index{1} << 40}, sets, workspace)) {
    EXPECT_TRUE(index >= 100 && index < Index{1} << 40) << index;
  }
}

}  // namespace
}  // namespace sparsesync
