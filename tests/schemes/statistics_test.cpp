// Statistics: of index sets, of the rows that schemes derive from them, and estimates of unmeasured
// values.
#include "schemes/statistics.h"

#include <gtest/gtest.h>

#include <vector>

#include "schemes/two_level/nodes.h"
#include "tests/support/index_sets.h"
#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

TEST(Statistics, unions_of_groups) {
  // Five workers in groups of two: {0, 1}, {2, 3}, {4}.
  const OwnedIndexSets sets{{1, 2}, {2, 3}, {4}, {5, 6, 7}, {1}};
  const SpaceStatistics known = statistics_of(views_of(sets), 10);
  EXPECT_EQ(known.united_in_groups, (std::vector<double>{3, 4, 7}));
  EXPECT_EQ(united_by(known, 1, 5), 3);
  EXPECT_EQ(united_by(known, 2, 5), 4);
  EXPECT_NEAR(united_by(known, 3, 5), 5.55, 0.01);  // 4 · (3 / 2)^(log2 7 / 4)
  EXPECT_EQ(united_by(known, 4, 5), 7);
  EXPECT_EQ(united_by(known, 5, 5), 7);
  // Estimates without measured group unions: for disjoint sets, equal sets, and empty sets.
  EXPECT_NEAR(united_by({10, 10, 80}, 4, 8), 40, 1e-9);
  EXPECT_EQ(united_by({10, 10, 10}, 4, 8), 10);
  EXPECT_EQ(united_by({0, 0, 0}, 4, 8), 0);
  EXPECT_EQ(united_by({7, 7, 7}, 1, 1), 7);
}

// Blocks and node unions are estimated if they were not measured. The estimate is accurate for rows
// at random positions.
TEST(Statistics, unmeasured_blocks_and_node_unions_are_estimated) {
  Random random(seed());
  SchemeOptions options;
  options.workers_per_node = 2;
  for (const Index width : {1, 16, 100, 256, 300}) {
    const RowSpace space{DType::f32, width, 40'000, {}};
    const OwnedIndexSets sets = random_sets(random, space.rows, 8, 1'500);
    const SpaceStatistics seen = statistics_of(views_of(sets), space, options);
    const SpaceStatistics rows_alone = statistics_of(views_of(sets), space.rows);
    const SpaceStatistics blocks = block_statistics(space, options.block, rows_alone);
    ASSERT_EQ(seen.blocks.size(), 1U);
    EXPECT_NEAR(blocks.touched_mean / seen.blocks[0].touched_mean, 1, 0.03) << width;
    EXPECT_NEAR(blocks.touched_max / seen.blocks[0].touched_max, 1, 0.03) << width;
    EXPECT_NEAR(blocks.united / seen.blocks[0].united, 1, 0.03) << width;
    ASSERT_EQ(seen.nodes.size(), 2U);
    for (int place = 0; place < 2; ++place) {
      const SpaceStatistics& of_range = seen.nodes[static_cast<std::size_t>(place)];
      const SpaceStatistics estimate = range_statistics(rows_alone, space.rows, Nodes(8, 2), place);
      EXPECT_NEAR(estimate.touched_mean / of_range.touched_mean, 1, 0.1) << width;
      EXPECT_NEAR(estimate.united / of_range.united, 1, 0.1) << width;
    }
  }
}

TEST(Statistics, the_largest_of_normal_numbers) {
  EXPECT_EQ(expected_largest_normal(1), 0);
  EXPECT_NEAR(expected_largest_normal(2), 0.5642, 0.03);
  EXPECT_NEAR(expected_largest_normal(8), 1.4236, 0.02);
  EXPECT_NEAR(expected_largest_normal(64), 2.3436, 0.03);
}

}  // namespace
}  // namespace sparsesync::testing
