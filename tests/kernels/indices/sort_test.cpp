// ctest: DEVICES
// sort_keys and sort_with_order, compared with std::stable_sort.
#include "kernels/indices/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/base/threads.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Sort = OperationTest;

/// Sorts `keys` with both functions and checks the results.
void expect_sorts(const Context& context, const std::vector<Index>& keys, Index bound,
                  SortWorkspace& workspace) {
  std::vector<Index> expected(keys.size());
  std::iota(expected.begin(), expected.end(), Index{0});
  const auto key_of = [&](Index place) { return keys[static_cast<std::size_t>(place)]; };
  std::stable_sort(expected.begin(), expected.end(),
                   [&](Index a, Index b) { return key_of(a) < key_of(b); });
  std::vector<Index> sorted = keys;
  std::vector<Index> order(keys.size(), -1);
  sort_with_order(context, sorted, order, bound, workspace);
  std::vector<Index> alone = keys;
  sort_keys(context, alone, bound, workspace);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(order[i], expected[i]) << "at " << i << ", bound " << bound;
    ASSERT_EQ(sorted[i], key_of(expected[i])) << "at " << i << ", bound " << bound;
    ASSERT_EQ(alone[i], sorted[i]) << "at " << i << ", bound " << bound;
  }
}

TEST_F(Sort, IsStable) {
  SortWorkspace workspace(context_);
  std::vector<Index> keys{2, 0, 1, 2, 1, 0, 0, 2, 1};
  std::vector<Index> order(keys.size());
  sort_with_order(context_, keys, order, 3, workspace);
  EXPECT_EQ(keys, (std::vector<Index>{0, 0, 0, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(order, (std::vector<Index>{1, 5, 6, 2, 4, 8, 0, 3, 7}));
}

TEST_F(Sort, AcceptsEveryBound) {
  Random random(testing::seed());
  SortWorkspace workspace(context_);
  for (const Index bound :
       {Index{1}, Index{2}, Index{255}, Index{256}, Index{257}, Index{65'536}, Index{65'537},
        Index{1} << 31, (Index{1} << 32) + 1, Index{1} << 61, std::numeric_limits<Index>::max()}) {
    for (const int count : {0, 1, 2, 3, 255, 1000, 2049, 5000}) {
      std::vector<Index> keys(static_cast<std::size_t>(count));
      for (Index& key : keys) key = random.below(7) == 0 ? bound - 1 : random.below(bound);
      expect_sorts(context_, keys, bound, workspace);
      if (HasFatalFailure()) return;
    }
  }
}

/// Keys that are spread, crowded at one end, and all equal.
std::vector<std::vector<Index>> many_keys(Random& random, Index bound, std::size_t count) {
  std::vector<Index> spread(count);
  std::vector<Index> crowded(count);
  for (std::size_t i = 0; i < count; ++i) {
    spread[i] = random.below(bound);
    crowded[i] = i % 1000 == 0 ? bound - 1 : random.below(std::min<Index>(bound, 50));
  }
  return {spread, crowded, std::vector<Index>(count, bound - 1)};
}

TEST_F(Sort, SortsManyKeys) {
  Random random(testing::seed());
  SortWorkspace workspace(context_);
  for (const Index bound : {Index{3}, Index{100'000'007}, Index{1} << 62}) {
    for (const std::size_t count :
         std::array<std::size_t, 9>{31, 32, 33, 256, 257, 1024, 4096, 4097, 150'001}) {
      for (const std::vector<Index>& keys : many_keys(random, bound, count)) {
        expect_sorts(context_, keys, bound, workspace);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Sort, OfManyKeysIsTheSameForEveryNumberOfThreads) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the CPU implementation uses threads";
  // Enough keys that each of several threads gets a part.
  Random random(testing::seed());
  for (const Index bound : {Index{3}, Index{100'000'007}, Index{1} << 62}) {
    for (const std::vector<Index>& keys : many_keys(random, bound, 150'001)) {
      for (const int count : {1, 2, 3, 8}) {
        Threads threads(count);
        const Context context(memory_, threads);
        SortWorkspace workspace(context);
        expect_sorts(context, keys, bound, workspace);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Sort, KeepsSortedKeys) {
  SortWorkspace workspace(context_);
  for (const std::size_t count : {std::size_t{1000}, std::size_t{10'000}}) {
    std::vector<Index> keys(count);
    std::iota(keys.begin(), keys.end(), Index{0});
    const auto bound = static_cast<Index>(count);
    for (const Index larger : {bound, Index{1} << 20, Index{1} << 40}) {
      expect_sorts(context_, keys, larger, workspace);
    }
    std::reverse(keys.begin(), keys.end());
    expect_sorts(context_, keys, bound, workspace);
    const std::vector<Index> equal(count, 300);
    expect_sorts(context_, equal, 301, workspace);
  }
}

TEST_F(Sort, AcceptsAnEmptyInput) {
  SortWorkspace workspace(context_);
  for (const Index bound : {Index{0}, Index{1}, Index{1} << 61}) {
    sort_with_order(context_, {}, {}, bound, workspace);
    sort_keys(context_, {}, bound, workspace);
  }
}

TEST_F(Sort, RequiresAnOutputElementForEachKey) {
  SortWorkspace workspace(context_);
  std::vector<Index> keys{1, 0};
  std::vector<Index> order{7};
  EXPECT_THROW(sort_with_order(context_, keys, order, 2, workspace), ContractError);
}

TEST_F(Sort, AllocatesNothingOnceItsWorkspaceIsLargeEnough) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the CPU implementation uses the workspace";
  Threads threads(2);
  const Context context(memory_, threads);
  for (const std::size_t count : {std::size_t{4}, std::size_t{100'000}}) {
    for (const Index bound : {Index{100'000}, std::numeric_limits<Index>::max()}) {
      SortWorkspace workspace(context);
      std::vector<Index> keys(count, 3);
      keys.front() = 99'999;
      std::vector<Index> order(count);
      sort_with_order(context, keys, order, bound, workspace);
      const std::int64_t before = memory_.allocations();
      for (int i = 0; i < 3; ++i) sort_with_order(context, keys, order, bound, workspace);
      EXPECT_EQ(memory_.allocations(), before);
    }
  }
}

}  // namespace
}  // namespace sparsesync
