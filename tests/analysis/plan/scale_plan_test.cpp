// Plans for a range of numbers of workers. They match plan() for each number, and crossovers are
// where the fastest scheme changes.
#include "analysis/plan/scale_plan.h"

#include <gtest/gtest.h>

#include "analysis/trace/generate.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

TEST(Doublings, ArePowersOfTwoPlusBothEnds) {
  EXPECT_EQ(doublings(1, 1), (std::vector<int>{1}));
  EXPECT_EQ(doublings(2, 16), (std::vector<int>{2, 4, 8, 16}));
  EXPECT_EQ(doublings(3, 20), (std::vector<int>{3, 4, 8, 16, 20}));
  EXPECT_EQ(doublings(5, 7), (std::vector<int>{5, 7}));
  EXPECT_EQ(doublings(65'536, 65'536), (std::vector<int>{65'536}));
  EXPECT_EQ(doublings(1, 65'536).size(), 17U);
}

class ScalePlans : public ::testing::Test {
 protected:
  ScalePlans() {
    GenerateOptions options;
    options.workers = 8;
    write_trace(synthetic_trace(20'000, 0.02, 1.1, options), scratch_ / "T", true);
  }

  Outlook outlook() const { return {Trace::open(scratch_ / "T"), {}, 1}; }

 private:
  Scratch scratch_;
};

TEST_F(ScalePlans, MatchThePlanOfEachNumberOfWorkers) {
  const Outlook trace = outlook();
  const Network network{20e-6, 10e9, {}};
  std::vector<std::int64_t> done;
  const ScalePlan all = plan_over(trace, network, {}, {2, 8, 64}, std::nullopt,
                                  [&](std::int64_t so_far, std::int64_t in_all) {
                                    done.push_back(so_far);
                                    EXPECT_EQ(in_all, 5) << "three plans and two gaps";
                                  });
  EXPECT_EQ(done, (std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  ASSERT_EQ(all.plans.size(), 3U);
  for (const WorkersPlan& each : all.plans) {
    const Statistics statistics = trace.statistics(each.workers);
    const std::vector<Prediction> expected =
        plan({trace.spaces(), each.workers, statistics, network, {}});
    ASSERT_FALSE(each.predictions.empty());
    EXPECT_EQ(each.predictions.front().variant.scheme, expected.front().variant.scheme);
    EXPECT_EQ(each.predictions.front().seconds, expected.front().seconds);
    for (std::size_t i = 1; i < each.predictions.size(); ++i) {
      EXPECT_GE(each.predictions[i].seconds, each.predictions[i - 1].seconds);
      EXPECT_TRUE(each.predictions[i].ruled_out.empty());
    }
    EXPECT_EQ(each.is_known, each.workers <= 8);
  }
}

TEST_F(ScalePlans, ChangeTheFastestSchemeAtCrossovers) {
  const Outlook trace = outlook();
  const Network network{20e-6, 10e9, {}};
  const auto best = [&](int workers) {
    return plan_over(trace, network, {}, {workers})
        .plans.front()
        .predictions.front()
        .variant.scheme;
  };
  const ScalePlan all = plan_over(trace, network, {}, doublings(2, 1024));
  ASSERT_FALSE(all.crossovers.empty());
  for (const Crossover& each : all.crossovers) {
    EXPECT_EQ(best(each.workers - 1), each.from);
    EXPECT_EQ(best(each.workers), each.to);
  }
}

TEST_F(ScalePlans, FindAThirdSchemeBetweenTwo) {
  const Outlook trace = outlook();
  int found = 0;
  for (const Network& network :
       {Network{20e-6, 10e9, {}}, Network{0, 1e9, {}}, Network{1e-3, 1e9, {}}}) {
    const auto best = [&](int workers) {
      return plan_over(trace, network, {}, {workers})
          .plans.front()
          .predictions.front()
          .variant.scheme;
    };
    // Two numbers of workers, and all crossovers between them.
    const ScalePlan all = plan_over(trace, network, {}, {2, 65'536});
    std::string before = best(2);
    for (const Crossover& each : all.crossovers) {
      EXPECT_EQ(each.from, before);
      EXPECT_EQ(best(each.workers - 1), each.from);
      EXPECT_EQ(best(each.workers), each.to);
      before = each.to;
    }
    EXPECT_EQ(before, best(65'536));
    found = std::max(found, static_cast<int>(all.crossovers.size()));
  }
  EXPECT_GE(found, 2) << "no link has a third scheme in between";
}

TEST_F(ScalePlans, AreEmptyWithoutMemoryForAnyScheme) {
  const ScalePlan all = plan_over(outlook(), {20e-6, 10e9, {}}, {}, {4, 8}, 1.0);
  for (const WorkersPlan& each : all.plans) EXPECT_TRUE(each.predictions.empty());
  EXPECT_TRUE(all.crossovers.empty());
}

TEST_F(ScalePlans, HaveNoCrossoverWithoutAScheme) {
  const Outlook trace = outlook();
  const double most = plan_over(trace, {20e-6, 10e9, {}}, {}, {1024})
                          .plans.front()
                          .predictions.front()
                          .memory_bytes;
  for (const double share : {0.2, 0.5, 0.9}) {
    const ScalePlan all = plan_over(trace, {20e-6, 10e9, {}}, {}, doublings(2, 1024), share * most);
    for (const Crossover& each : all.crossovers) {
      EXPECT_FALSE(each.from.empty());
      EXPECT_FALSE(each.to.empty());
    }
  }
}

TEST_F(ScalePlans, TheTheoremConsidersOnlyBytes) {
  const Outlook trace = outlook();
  const TheoremSeconds slow = plan_over(trace, {0, 1e9, {}}, {}, {8}).plans.front().theorem;
  const TheoremSeconds fast = plan_over(trace, {1, 2e9, {}}, {}, {8}).plans.front().theorem;
  EXPECT_NEAR(slow.balanced, 2 * fast.balanced, 1e-12);
  EXPECT_NEAR(slow.hierarchy, 2 * fast.hierarchy, 1e-12);
  EXPECT_EQ(slow.optimum(), std::min(slow.balanced, slow.hierarchy));
  const double bits = 400 * (32 * 4 + 4) * 8.0;  // a worker's rows and their indices
  const double expected = 7.0 / 8 * (1 + trace.densification(8)) * bits / 1e9;
  EXPECT_NEAR(slow.balanced, expected, 1e-12);
  EXPECT_EQ(trace.eighth_of_workers(), 1);
}

}  // namespace
}  // namespace sparsesync
