// The fit of a link: it recovers known latencies and rates from samples with noise and outliers,
// and reports inputs that it cannot fit.
#include "engine/planner/calibration/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/base/bits.h"
#include "tests/support/random.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using testing::Random;

double uniform(Random& random) {
  return (static_cast<double>(random.below(1'000'000'000)) + 0.5) / 1e9;
}

double normal(Random& random) {
  return std::sqrt(-2 * std::log(uniform(random))) *
         std::cos(2 * std::numbers::pi * uniform(random));
}

double between(Random& random, double low, double high) {
  return low * std::pow(high / low, uniform(random));
}

struct Noise {
  double share = 0;           // standard deviation, relative to the time
  double outliers = 0;        // share of samples that are outliers
  double outlier_factor = 1;  // factor by which outliers are slower
};

std::vector<TimedTransfer> samples_of(Random& random, double latency, double rate, Noise noise,
                                      int repeat = 11) {
  std::vector<TimedTransfer> samples;
  for (int size = 32; size < 20'000'000; size *= 4) {
    const auto bytes = static_cast<double>(size);
    for (int i = 0; i < repeat; ++i) {
      double seconds = (latency + bytes * 8 / rate) * std::exp(noise.share * normal(random));
      if (uniform(random) < noise.outliers) seconds *= noise.outlier_factor;
      samples.push_back({bytes, seconds, i});
    }
  }
  return samples;
}

TEST(FitLink, ExactSamplesRecoverTheLink) {
  Random random(testing::seed());
  for (int round = 0; round < 50; ++round) {
    const double latency = between(random, 1e-7, 1e-2);
    const double rate = between(random, 1e6, 4e11);
    const FittedLink link = fit_link(samples_of(random, latency, rate, {}));
    EXPECT_NEAR(link.latency_s / latency, 1, 1e-6) << latency << " s, " << rate << " bits/s";
    EXPECT_NEAR(link.rate_bps / rate, 1, 1e-6) << latency << " s, " << rate << " bits/s";
    EXPECT_NEAR(link.latency_ci.low / latency, 1, 1e-6);
    EXPECT_NEAR(link.rate_ci.high / rate, 1, 1e-6);
  }
}

TEST(FitLink, IsRobustToNoiseAndOutliers) {
  Random random(testing::seed());
  int latency_within = 0;
  int rate_within = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    const double latency = between(random, 1e-6, 1e-3);
    const double rate = between(random, 1e8, 1e11);
    const FittedLink link = fit_link(samples_of(random, latency, rate, {0.05, 0.1, 8}));
    EXPECT_NEAR(link.latency_s / latency, 1, 0.15) << latency << " s, " << rate << " bits/s";
    EXPECT_NEAR(link.rate_bps / rate, 1, 0.15) << latency << " s, " << rate << " bits/s";
    EXPECT_LE(link.latency_ci.low, link.latency_s);
    EXPECT_GE(link.latency_ci.high, link.latency_s);
    EXPECT_LE(link.rate_ci.low, link.rate_bps);
    EXPECT_GE(link.rate_ci.high, link.rate_bps);
    latency_within += link.latency_ci.low <= latency && latency <= link.latency_ci.high ? 1 : 0;
    rate_within += link.rate_ci.low <= rate && rate <= link.rate_ci.high ? 1 : 0;
  }
  // The intervals aim at a coverage of 95%. Outliers are always late, so they shift some of them.
  EXPECT_GE(latency_within, kRounds * 8 / 10);
  EXPECT_GE(rate_within, kRounds * 8 / 10);
}

TEST(FitLink, MoreNoiseGivesWiderIntervals) {
  const auto width = [](double noise) {
    Random random(testing::seed());
    const FittedLink link = fit_link(samples_of(random, 1e-5, 1e9, {noise, 0, 1}));
    return link.rate_ci.high - link.rate_ci.low;
  };
  EXPECT_LT(width(0.01), width(0.1));
  EXPECT_LT(width(0), 1e-3);
}

TEST(FitLink, TheIntervalIncludesVariationBetweenPasses) {
  Random random(testing::seed());
  // In each pass, the whole machine is faster or slower. The samples of a single size do not show
  // that all sizes vary together.
  int within = 0;
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<TimedTransfer> samples;
    for (int pass = 0; pass < 9; ++pass) {
      const double slower = std::exp(0.1 * normal(random));
      for (int size = 32; size < 20'000'000; size *= 4) {
        samples.push_back({1.0 * size, (1e-4 + size * 8 / 1e9) * slower, pass});
      }
    }
    const FittedLink link = fit_link(samples);
    within += link.latency_ci.low <= 1e-4 && 1e-4 <= link.latency_ci.high ? 1 : 0;
  }
  // The intervals aim at a coverage of 95%. Plain percentiles of 9 passes would reach 90%.
  EXPECT_GE(within, kRounds * 88 / 100);
}

TEST(FitLink, HasTheSameBitsForAnyOrderOfSamples) {
  Random random(testing::seed());
  std::vector<TimedTransfer> samples = samples_of(random, 1e-5, 1e9, {0.05, 0.1, 8});
  const FittedLink first = fit_link(samples);
  const FittedLink again = fit_link(samples);
  EXPECT_EQ(first.latency_s, again.latency_s);
  EXPECT_EQ(first.rate_ci.low, again.rate_ci.low);
  EXPECT_EQ(first.latency_ci.high, again.latency_ci.high);
  std::reverse(samples.begin(), samples.end());
  EXPECT_EQ(fit_link(samples).rate_bps, first.rate_bps);
}

TEST(FitLink, ALatencyIsNeverNegative) {
  // The line through these points has a negative intercept.
  const FittedLink link =
      fit_link(std::vector<TimedTransfer>{{1000, 1e-3}, {2000, 2.1e-3}, {4000, 4.4e-3}});
  EXPECT_EQ(link.latency_s, 0);
  EXPECT_NEAR(link.rate_bps, 8e6, 1e6);
}

TEST(FitLink, ReportsInputsThatCannotBeFitted) {
  const auto refused = [](const std::vector<TimedTransfer>& samples,
                          const std::vector<std::string>& parts) {
    expect_error<InputError>([&] { fit_link(samples); }, parts);
  };
  refused({}, {"0 sizes"});
  refused({{100, 1}, {100, 2}}, {"1 size"});
  refused({{100, 1}, {-5, 2}}, {"-5 bytes"});
  refused({{100, 1}, {200, 0}}, {"200 bytes in 0 s"});
  refused({{100, 1}, {200, std::nan("")}}, {"nan"});
  refused({{100, 1}, {std::nan(""), 1}}, {"nan"});
  expect_error<Error>(
      [] {
        fit_link(std::vector<TimedTransfer>{{100, 2}, {1e6, 1}});
      },
      {"more bytes take no longer", "repeat"});
}

/// Returns a step with some of every kind of work. The amounts depend on `number`.
Work work_of(std::uint64_t number) {
  Work work;
  for (const HostCost& cost : kHostCosts) {
    work.*cost.amount = static_cast<double>(mix64(number++ * 1'000'003) % 1'000'000);
  }
  return work;
}

TEST(FitHost, ExactSamplesRecoverTheCosts) {
  const HostCosts costs{1e-9, 2e-10, 8e-9, 3e-10, 1.5e-8, 4e-8, 0, 5e-8, 6e-8};
  std::vector<TimedWork> samples;
  for (std::uint64_t number = 0; number < 40; ++number) {
    samples.push_back({work_of(number), costs.seconds(work_of(number))});
  }
  const HostCosts found = fit_host(samples);
  for (const HostCost& cost : kHostCosts) {
    EXPECT_NEAR(found.*cost.seconds, costs.*cost.seconds, 1e-4 * 6e-8) << cost.name;
  }
}

TEST(FitHost, NoCostIsNegativeAndNoWorkCostsNothing) {
  // Twice the rows take half the time, so a fitted line would have a negative slope.
  Work few;
  few.sorted_rows = 1000;
  few.messages = 1;
  Work many;
  many.sorted_rows = 2000;
  many.messages = 1;
  const std::vector<TimedWork> samples{{few, 2}, {many, 1}};
  const HostCosts found = fit_host(samples);
  for (const HostCost& cost : kHostCosts) {
    const bool done = cost.amount == &Work::messages;
    EXPECT_EQ(found.*cost.seconds > 0, done) << cost.name;
  }
  // Minimizes the squares of message_s / 2 - 1 and message_s / 1 - 1.
  EXPECT_NEAR(found.message_s, 1.2, 1e-9);
}

TEST(FitHost, ReportsInputsThatCannotBeFitted) {
  expect_error<InputError>([] { fit_host({}); }, {"no step was timed"});
  for (const double seconds : {0.0, -1.0, std::nan("")}) {
    expect_error<InputError>(
        [&] {
          fit_host(std::vector<TimedWork>{{work_of(1), seconds}});
        },
        {"time it again"});
  }
}

}  // namespace
}  // namespace sparsesync
