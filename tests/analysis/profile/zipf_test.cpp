// The fit of Zipf's law. It recovers the exponent that rows were drawn with, within its interval.
// It returns nothing if there is no exponent.
#include "analysis/profile/touch_histogram.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

/// Draws the rows that `samples` steps touch, each row independently with its probability under the
/// law. Returns the counts of the counts.
CountsOfCounts drawn(Random& random, Index rows, double s, double scale, int samples) {
  std::vector<CountedRow> counted;
  for (Index rank = 1; rank <= rows; ++rank) {
    const double touched = -std::expm1(-scale * std::pow(static_cast<double>(rank), -s));
    std::int64_t times = 0;
    for (int sample = 0; sample < samples; ++sample) times += random.uniform() < touched ? 1 : 0;
    if (times > 0) counted.push_back({rank - 1, times});
  }
  return counts_of_counts(counted);
}

TEST(FitZipf, recovers_the_exponent_that_rows_were_drawn_with) {
  Random random(seed());
  int within = 0;
  int fits = 0;
  for (const double s : {0.3, 0.8, 1.0, 1.3, 2.0}) {
    for (int round = 0; round < 8; ++round) {
      // A scale at which a step touches a few hundred rows.
      const auto law = fit_zipf(20'000, drawn(random, 20'000, s, std::pow(200, s) / 4, 24), 24);
      ASSERT_TRUE(law) << s;
      EXPECT_NEAR(law->s, s, 0.12) << s;
      EXPECT_LE(law->ci.low, law->s);
      EXPECT_GE(law->ci.high, law->s);
      within += law->ci.low <= s && s <= law->ci.high ? 1 : 0;
      ++fits;
    }
  }
  // The intervals aim at a coverage of 95%. Fewer than 80% of 40 has a probability of less than 1
  // in 1000.
  EXPECT_GE(within, fits * 8 / 10);
}

TEST(FitZipf, finds_a_steep_law_or_returns_none) {
  Random random(seed());
  for (const double s : {4.0, 7.0, 9.0, 11.5, 14.0}) {
    const auto law = fit_zipf(100, drawn(random, 100, s, 4.6, 2000), 2000);
    if (!law) {
      EXPECT_GT(s, 8) << "the first rows are sufficient to fit this exponent";
      continue;
    }
    EXPECT_NEAR(law->s, s, 0.1 * s);
    EXPECT_GT(law->s, law->ci.low);
    EXPECT_LT(law->s, law->ci.high);
    EXPECT_LT(law->ci.high, 12);
  }
}

TEST(FitZipf, more_steps_give_a_narrower_interval) {
  Random random(seed());
  const auto width = [&](int samples) {
    const auto law = fit_zipf(5'000, drawn(random, 5'000, 1.1, 30, samples), samples);
    return law ? law->ci.high - law->ci.low : 99;
  };
  EXPECT_LT(width(64), width(4));
}

TEST(FitZipf, gives_0_for_equally_likely_rows) {
  Random random(seed());
  const auto law = fit_zipf(5'000, drawn(random, 5'000, 0, 0.05, 16), 16);
  ASSERT_TRUE(law);
  EXPECT_NEAR(law->s, 0, 0.25) << "nearly equally likely rows look like this, too";
  EXPECT_EQ(law->ci.low, 0);
}

TEST(FitZipf, returns_nothing_if_no_law_can_be_fitted) {
  EXPECT_FALSE(fit_zipf(100, {}, 8)) << "no row touched";
  EXPECT_FALSE(fit_zipf(100, {{5, 1}}, 8)) << "one row touched";
  EXPECT_FALSE(fit_zipf(100, {{8, 100}}, 8)) << "all rows touched in all steps";
  EXPECT_FALSE(fit_zipf(1, {{3, 1}}, 8)) << "a tensor of one row";
}

TEST(FitZipf, accepts_tensors_of_any_size) {
  // 2^40 rows, of which a hundred were touched in all steps and some in one. The law is steep and
  // fitted quickly.
  const auto law = fit_zipf(Index{1} << 40, {{1, 50}, {8, 100}}, 8);
  ASSERT_TRUE(law);
  EXPECT_GT(law->s, 1);
}

}  // namespace
}  // namespace sparsesync::testing
