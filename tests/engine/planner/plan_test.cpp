// The planner: results of trials replace predictions, and only promising candidates are tried.
#include "engine/planner/scheme/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/support/networks.h"
#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

constexpr Network kSlow{50e-6, 200e6, kQuick.host};

class Planner : public ::testing::Test {
 protected:
  std::vector<Prediction> plan_with(const Network& network, std::span<const Trial> trials,
                                    int size = 4) const {
    PlanQuestion question{spaces_, size, statistics_, network};
    question.trials = trials;
    return plan(question);
  }

  static const Prediction& of(const std::vector<Prediction>& predictions,
                              const SchemeVariant& variant) {
    return *prediction_of(predictions, variant);
  }

 private:
  std::vector<RowSpace> spaces_ = row_spaces(std::array{TensorSpec{"t", 4'000, 8, DType::f32}});
  Statistics statistics_{[this] {
    Random random(seed());
    std::vector<std::vector<Index>> rows;
    for (int worker = 0; worker < 4; ++worker) rows.push_back(distinct_rows(random, 4'000, 400));
    return statistics_of({rows.begin(), rows.end()}, spaces_.front(), {});
  }()};
};

TEST_F(Planner, uses_trial_results_for_their_variant_and_the_median_for_others) {
  const std::vector<Prediction> before = plan_with(kQuick, {});
  const auto trial_of = [&](const char* scheme, double times) {
    const double expected = of(before, {scheme}).host_seconds;
    const double quarter = times * expected / 4;
    return Trial{{scheme},
                 {.reduce = {.apart = quarter, .arriving = quarter},
                  .gather = {.apart = quarter, .arriving = quarter}},
                 expected};
  };
  // The fastest of several trials counts.
  const std::array trials{trial_of("owned", 3), trial_of("balanced", 0.5), trial_of("owned", 2.5),
                          trial_of("sparse_ps", 2)};
  const double median = (2 + 2.5) / 2;
  const std::vector<Prediction> after = plan_with(kQuick, trials);
  for (const Prediction& prediction : after) {
    const Prediction& expected = of(before, prediction.variant);
    const std::string& scheme = prediction.variant.scheme;
    SCOPED_TRACE(prediction.variant.label());
    EXPECT_EQ(prediction.trials, scheme == "owned"                               ? 2
                                 : scheme == "balanced" || scheme == "sparse_ps" ? 1
                                                                                 : 0);
    const double over_expected = scheme == "owned"       ? 2.5
                                 : scheme == "balanced"  ? 0.5
                                 : scheme == "sparse_ps" ? 2
                                                         : median;
    EXPECT_NEAR(prediction.host_seconds, over_expected * expected.host_seconds, 1e-15);
    const bool costs = prediction.host_seconds > 0;
    EXPECT_EQ(prediction.seconds_at_best < prediction.seconds, costs);
    EXPECT_EQ(prediction.seconds_at_worst > prediction.seconds, costs && prediction.trials == 0);
  }
  EXPECT_TRUE(std::is_sorted(after.begin(), after.end(), is_better));
}

TEST_F(Planner, applies_a_trial_to_variants_that_cost_the_same) {
  const std::vector<Prediction> before = plan_with(kQuick, {}, 2);
  const SchemeVariant tried{"all_gather", Communication::ring};
  const double expected = of(before, tried).host_seconds;
  const std::array trials{
      Trial{tried, {.reduce = {.apart = 2 * expected}, .gather = {}}, expected},
      Trial{{"owned"}, {.reduce = {.apart = expected}, .gather = {}}, expected}};
  const std::vector<Prediction> after = plan_with(kQuick, trials, 2);
  for (const Communication pattern : kCommunications) {
    EXPECT_EQ(of(after, {"all_gather", pattern}).trials, 1) << name_of(pattern);
    EXPECT_EQ(of(after, {"all_gather", pattern}).seconds, of(after, tried).seconds);
    EXPECT_EQ(of(after, {"split_all_gather", pattern}).trials, 0);
  }
}

TEST_F(Planner, overlaps_work_on_arriving_messages_with_the_network) {
  const auto seconds_if = [&](const HostSeconds& took) {
    const std::array trials{Trial{{"balanced"}, took, 1e-3}};
    return of(plan_with(kSlow, trials), {"balanced"}).seconds;
  };
  const double apart = seconds_if({.reduce = {.apart = 1e-3}, .gather = {}});
  const double arriving = seconds_if({.reduce = {.arriving = 1e-3}, .gather = {}});
  EXPECT_LT(arriving, apart);
  EXPECT_GT(arriving, seconds_if({}));
}

TEST_F(Planner, finds_nothing_worth_a_trial_if_processors_cost_nothing) {
  EXPECT_TRUE(worth_a_trial(plan_with({50e-6, 200e6}, {})).empty());
  EXPECT_GT(worth_a_trial(plan_with(kQuick, {})).size(), 1U);
}

/// Returns a prediction with these times, of which one second is CPU time. It has not been tried.
Prediction expected(const char* scheme, double seconds, double at_best, double at_worst) {
  Prediction prediction{{scheme}};
  prediction.seconds = seconds;
  prediction.host_seconds = 1;
  prediction.seconds_at_best = at_best;
  prediction.seconds_at_worst = at_worst;
  return prediction;
}
Prediction tried(const char* scheme, double seconds) {
  Prediction prediction = expected(scheme, seconds, seconds, seconds);
  prediction.trials = 4;
  return prediction;
}

std::vector<std::string> schemes_of(const std::vector<SchemeVariant>& variants) {
  std::vector<std::string> schemes;
  for (const SchemeVariant& variant : variants) schemes.push_back(variant.scheme);
  return schemes;
}

TEST(WorthATrial, includes_candidates_that_may_be_the_fastest) {
  const auto worth = [](const std::vector<Prediction>& predictions) {
    return schemes_of(worth_a_trial(predictions));
  };
  using Schemes = std::vector<std::string>;
  EXPECT_EQ(worth({}), Schemes{});
  EXPECT_EQ(worth({expected("a", 4, 3, 6)}), Schemes{});
  // The first candidate is tried if it may be slower than another one. The others are tried if they
  // may be faster than the first.
  EXPECT_EQ(worth({expected("a", 4, 3, 6), expected("b", 8, 7, 9)}), Schemes{});
  EXPECT_EQ(worth({expected("a", 4, 3, 6), expected("b", 6, 5, 7)}), Schemes{"a"});
  EXPECT_EQ(worth({expected("a", 4, 3, 6), expected("b", 5, 3.9, 7), expected("c", 9, 5, 12)}),
            (Schemes{"a", "b"}));
  // Candidates with enough trials are not tried again.
  EXPECT_EQ(worth({tried("a", 4), expected("b", 5, 3, 8)}), Schemes{"b"});
  EXPECT_EQ(worth({expected("a", 4, 3, 6), tried("b", 5)}), Schemes{"a"});
  EXPECT_EQ(worth({tried("a", 4), tried("b", 5)}), Schemes{});
  // Candidates that cannot be used are not tried either.
  std::vector<Prediction> ruled{expected("a", 4, 3, 6), expected("b", 5, 3, 8)};
  ruled[1].ruled_out = "no room";
  EXPECT_EQ(worth(ruled), Schemes{});
}

}  // namespace
}  // namespace sparsesync::testing
