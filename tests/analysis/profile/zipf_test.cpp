// Zipf's law, fitted: the exponent that rows were drawn with comes back, within its interval; where
// there is none, none is told.
#include "analysis/profile/touch_histogram.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

/// Counts of rows that so many worker's steps touched, each row by itself with the law's
/// probability.
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

TEST(FitZipf, the_exponent_that_rows_were_drawn_with_comes_back) {
  Random random(seed());
  int within = 0;
  int fits = 0;
  for (const double s : {0.3, 0.8, 1.0, 1.3, 2.0}) {
    for (int round = 0; round < 8; ++round) {
      // So large a scale that some hundred rows are touched in a step.
      const auto law = fit_zipf(20'000, drawn(random, 20'000, s, std::pow(200, s) / 4, 24), 24);
      ASSERT_TRUE(law) << s;
      EXPECT_NEAR(law->s, s, 0.12) << s;
      EXPECT_LE(law->ci.low, law->s);
      EXPECT_GE(law->ci.high, law->s);
      within += law->ci.low <= s && s <= law->ci.high ? 1 : 0;
      ++fits;
    }
  }
  // 95% are aimed at; fewer than 80% of 40 would be one case in thousands.
  EXPECT_GE(within, fits * 8 / 10);
}

TEST(FitZipf, a_steep_law_is_found_or_none_is_told) {
  Random random(seed());
  for (const double s : {4.0, 7.0, 9.0, 11.5, 14.0}) {
    const auto law = fit_zipf(100, drawn(random, 100, s, 4.6, 2000), 2000);
    if (!law) {
      EXPECT_GT(s, 8) << "its first rows say enough";
      continue;
    }
    EXPECT_NEAR(law->s, s, 0.1 * s);
    EXPECT_GT(law->s, law->ci.low);
    EXPECT_LT(law->s, law->ci.high);
    EXPECT_LT(law->ci.high, 12);
  }
}

TEST(FitZipf, more_steps_make_a_narrower_interval) {
  Random random(seed());
  const auto width = [&](int samples) {
    const auto law = fit_zipf(5'000, drawn(random, 5'000, 1.1, 30, samples), samples);
    return law ? law->ci.high - law->ci.low : 99;
  };
  EXPECT_LT(width(64), width(4));
}

TEST(FitZipf, of_rows_that_are_all_alike_is_0) {
  Random random(seed());
  const auto law = fit_zipf(5'000, drawn(random, 5'000, 0, 0.05, 16), 16);
  ASSERT_TRUE(law);
  EXPECT_NEAR(law->s, 0, 0.25) << "rows that are nearly alike look like this too";
  EXPECT_EQ(law->ci.low, 0);
}

TEST(FitZipf, tells_nothing_where_nothing_can_be_told) {
  EXPECT_FALSE(fit_zipf(100, {}, 8)) << "no row touched";
  EXPECT_FALSE(fit_zipf(100, {{5, 1}}, 8)) << "one row touched";
  EXPECT_FALSE(fit_zipf(100, {{8, 100}}, 8)) << "all by all";
  EXPECT_FALSE(fit_zipf(1, {{3, 1}}, 8)) << "one row there";
}

TEST(FitZipf, takes_tensors_of_any_size) {
  // 2^40 rows, a hundred of them touched by all and some by one: steep, and quickly told.
  const auto law = fit_zipf(Index{1} << 40, {{1, 50}, {8, 100}}, 8);
  ASSERT_TRUE(law);
  EXPECT_GT(law->s, 1);
}

}  // namespace
}  // namespace sparsesync::testing
