// Merging of layers into buckets. Exact merging matches an exhaustive search. Merging for overlap
// is close to it. Greedy merging follows the paper and is not always optimal.
#include "engine/planner/schedule/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/planner/schedule/schedule_simulator.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using testing::seed;

/// A model, and the start-up times and rates of its phases.
struct Case {
  std::vector<ScheduledLayer> layers;
  BucketSeconds start;
  BucketSeconds per_byte;

  BucketCosts costs() const {
    return [this](LayerRange range) {
      double bytes = 0;
      for (int layer = range.first; layer <= range.last; ++layer) {
        bytes += layers[static_cast<std::size_t>(layer)].bytes;
      }
      return BucketSeconds{0, start.reduce + per_byte.reduce * bytes,
                           start.gather + per_byte.gather * bytes};
    };
  }
};

Case some_case(Random& random, int layers) {
  Case some;
  const double pace = std::pow(10, 2 * random.uniform() - 1);
  const double size = 1e-6 * std::pow(10, 2 * random.uniform() - 1);
  for (int layer = 0; layer < layers; ++layer) {
    const int kind = random.uniform() < 0.15 ? 1 : 0;
    some.layers.push_back(
        {random.uniform() * pace, 2 * random.uniform() * pace, 1e6 * random.uniform(), kind});
  }
  some.start = {0, random.uniform() / 2, random.uniform() / 2};
  some.per_byte = {0, random.uniform() * size, random.uniform() * size};
  return some;
}

/// Calls `see` with every possible merging. Layers of different kinds are never merged.
template <typename See>
void for_each_merging(std::span<const ScheduledLayer> layers, See&& see) {
  const int count = static_cast<int>(layers.size());
  for (unsigned cuts = 0; cuts < 1U << static_cast<unsigned>(count - 1); ++cuts) {
    std::vector<LayerRange> buckets;
    bool mixes = false;
    for (int last = count - 1, layer = last; layer >= 0; --layer) {
      const auto place = static_cast<std::size_t>(layer);
      if (layer == 0 || (cuts >> (place - 1) & 1U) != 0) {
        buckets.push_back({layer, last});
        last = layer - 1;
      } else {
        mixes |= layers[place].kind != layers[place - 1].kind;
      }
    }
    if (!mixes) see(buckets);
  }
}

/// Builds a schedule from buckets.
using Steps = Schedule (*)(std::span<const ScheduledLayer>, std::vector<LayerRange>);

/// Returns the shortest step time over all mergings.
double least_of_all(std::span<const ScheduledLayer> layers, const BucketCosts& costs, Steps steps) {
  double least = std::numeric_limits<double>::infinity();
  for_each_merging(layers, [&](const std::vector<LayerRange>& buckets) {
    least = std::min(least, step_seconds(layers, costs, steps(layers, buckets)));
  });
  return least;
}

TEST(MergeExactly, IsTheBestOfAllMergings) {
  Random random(seed());
  for (int round = 0; round < 300; ++round) {
    const Case some = some_case(random, 1 + static_cast<int>(random.below(round < 290 ? 9 : 14)));
    const BucketCosts costs = some.costs();
    const double least = least_of_all(some.layers, costs, one_after_another);
    const double exact = step_seconds(
        some.layers, costs, one_after_another(some.layers, merge_exactly({some.layers, costs})));
    ASSERT_NEAR(exact, least, 1e-12 * least) << "round " << round;
  }
}

TEST(MergeExactly, IsTheBestForAnyCostsOfBuckets) {
  Random random(seed() + 1);
  for (int round = 0; round < 200; ++round) {
    const int layers = 2 + static_cast<int>(random.below(8));
    const Case some = some_case(random, layers);
    // A range costs more than each of its parts. Its cost is otherwise random.
    std::map<std::pair<int, int>, double> drawn;
    for (int size = 1; size <= layers; ++size) {
      for (int first = 0; first + size <= layers; ++first) {
        const int last = first + size - 1;
        const double parts =
            size == 1 ? 0 : std::max(drawn[{first, last - 1}], drawn[{first + 1, last}]);
        drawn[{first, last}] = parts + random.uniform();
      }
    }
    const BucketCosts costs = [&](LayerRange range) {
      return BucketSeconds{0, drawn[{range.first, range.last}], 0};
    };
    const double least = least_of_all(some.layers, costs, one_after_another);
    const double exact = step_seconds(
        some.layers, costs, one_after_another(some.layers, merge_exactly({some.layers, costs})));
    ASSERT_NEAR(exact, least, 1e-12 * least) << "round " << round;
  }
}

/// A case in which the paper's greedy merging is not optimal. Each layer is ready so soon after the
/// next that merging the two saves a start-up. In the end all layers wait for the last one.
TEST(MergeGreedily, MayWaitForAllLayersWhenTheBestMergingDoesNot) {
  std::vector<ScheduledLayer> layers(12, {0.0, 1.0, 10.0, 0});
  const BucketCosts costs = [](LayerRange range) {
    return BucketSeconds{0, 1.5 + 0.05 * 10 * range.size(), 0};
  };
  const ScheduleQuestion question{layers, costs};
  const auto step = [&](const std::vector<LayerRange>& buckets) {
    return step_seconds(layers, costs, one_after_another(layers, buckets));
  };
  EXPECT_EQ(merge_greedily(question), merge_all(layers));
  EXPECT_DOUBLE_EQ(step(merge_greedily(question)), 12 + 1.5 + 6);
  EXPECT_DOUBLE_EQ(step(merge_exactly(question)), least_of_all(layers, costs, one_after_another));
  EXPECT_LT(step(merge_exactly(question)), 0.8 * step(merge_greedily(question)));
}

TEST(MergeExactly, IsNeverWorseThanTheOthers) {
  Random random(seed() + 3);
  for (int round = 0; round < 300; ++round) {
    const Case some = some_case(random, 1 + static_cast<int>(random.below(60)));
    const BucketCosts costs = some.costs();
    const ScheduleQuestion question{some.layers, costs};
    const auto step = [&](const std::vector<LayerRange>& buckets) {
      return step_seconds(some.layers, costs, one_after_another(some.layers, buckets));
    };
    const double exact = step(merge_exactly(question)) * (1 - 1e-12);
    ASSERT_LE(exact, step(merge_greedily(question))) << "round " << round;
    ASSERT_LE(exact, step(each_layer(some.layers))) << "round " << round;
    ASSERT_LE(exact, step(merge_all(some.layers))) << "round " << round;
  }
}

TEST(MergeForOverlap, IsNearlyTheBestOfAllMergings) {
  Random random(seed() + 2);
  for (int round = 0; round < 300; ++round) {
    const Case some = some_case(random, 1 + static_cast<int>(random.below(9)));
    const BucketCosts costs = some.costs();
    const double least = least_of_all(some.layers, costs, gathers_under_forward);
    const auto found = [&](double grain) {
      return step_seconds(
          some.layers, costs,
          gathers_under_forward(some.layers, merge_for_overlap({some.layers, costs}, grain)));
    };
    ASSERT_NEAR(found(1e-5), least, 1e-4 * least) << "round " << round;
    ASSERT_LE(found(1e-3), 1.002 * least) << "round " << round;
  }
}

}  // namespace
}  // namespace sparsesync
