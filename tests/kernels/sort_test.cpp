// sort_pairs: against std::stable_sort.
#include "kernels/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Sort = OperationTest;

/// Sorts `keys`, each with its place as payload, and compares.
void expect_sorts(const Context& context, const std::vector<Index>& keys, Index bound,
                  SortWorkspace& workspace) {
  std::vector<std::pair<Index, Index>> expected;
  std::vector<Index> payloads;
  for (const Index key : keys) {
    // Not increasing, so that a sort by payload would be seen.
    payloads.push_back(static_cast<Index>(mix64(payloads.size())));
    expected.emplace_back(key, payloads.back());
  }
  std::stable_sort(expected.begin(), expected.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Index> sorted = keys;
  sort_pairs(context, sorted, payloads, bound, workspace);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(sorted[i], expected[i].first) << "at " << i << ", bound " << bound;
    ASSERT_EQ(payloads[i], expected[i].second) << "at " << i << ", bound " << bound;
  }
}

TEST_F(Sort, IsStable) {
  SortWorkspace workspace(context_);
  std::vector<Index> keys{2, 0, 1, 2, 1, 0, 0, 2, 1};
  std::vector<Index> payloads{0, 1, 2, 3, 4, 5, 6, 7, 8};
  sort_pairs(context_, keys, payloads, 3, workspace);
  EXPECT_EQ(keys, (std::vector<Index>{0, 0, 0, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(payloads, (std::vector<Index>{1, 5, 6, 2, 4, 8, 0, 3, 7}));
}

TEST_F(Sort, TakesEveryBound) {
  Random random(testing::seed());
  SortWorkspace workspace(context_);
  for (const Index bound :
       {Index{1}, Index{2}, Index{255}, Index{256}, Index{257}, Index{65'536}, Index{65'537},
        Index{1} << 31, (Index{1} << 32) + 1, Index{1} << 61, std::numeric_limits<Index>::max()}) {
    for (const int count : {0, 1, 2, 3, 255, 1000}) {
      std::vector<Index> keys(static_cast<std::size_t>(count));
      for (Index& key : keys) key = random.below(7) == 0 ? bound - 1 : random.below(bound);
      expect_sorts(context_, keys, bound, workspace);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Sort, LeavesWhatIsInOrder) {
  SortWorkspace workspace(context_);
  std::vector<Index> keys(1000);
  std::iota(keys.begin(), keys.end(), Index{0});
  for (const Index bound : {Index{1000}, Index{1} << 20, Index{1} << 40}) {
    expect_sorts(context_, keys, bound, workspace);
  }
  std::reverse(keys.begin(), keys.end());
  expect_sorts(context_, keys, 1000, workspace);
  const std::vector<Index> equal(1000, 300);
  expect_sorts(context_, equal, 301, workspace);
}

TEST_F(Sort, NothingStaysNothing) {
  SortWorkspace workspace(context_);
  sort_pairs(context_, {}, {}, 0, workspace);
  sort_pairs(context_, {}, {}, 1, workspace);
  sort_pairs(context_, {}, {}, Index{1} << 61, workspace);
}

TEST_F(Sort, WantsAPayloadForEachKey) {
  SortWorkspace workspace(context_);
  std::vector<Index> keys{1, 0};
  std::vector<Index> payloads{7};
  EXPECT_THROW(sort_pairs(context_, keys, payloads, 2, workspace), ContractError);
}

TEST_F(Sort, AllocatesNothingOnceItsWorkspaceIsLargeEnough) {
  SortWorkspace workspace(context_);
  std::vector<Index> keys{3, 1, 2, 0};
  std::vector<Index> payloads{0, 1, 2, 3};
  sort_pairs(context_, keys, payloads, 4, workspace);
  const std::int64_t before = memory_.allocations();
  EXPECT_EQ(before, 2);
  for (int i = 0; i < 3; ++i) sort_pairs(context_, keys, payloads, 4, workspace);
  EXPECT_EQ(memory_.allocations(), before);
}

}  // namespace
}  // namespace sparsesync
