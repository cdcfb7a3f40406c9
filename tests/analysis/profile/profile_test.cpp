// The profile of a trace: equal for any number of threads, pairs of many workers, and progress.
// tests/cli/profile_test.py compares the numbers with NumPy.
#include "analysis/profile/profile.h"

#include <gtest/gtest.h>

#include "analysis/trace/generate.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

Trace drawn_trace(const Scratch& scratch, int workers, int steps, double density) {
  GenerateOptions options;
  options.width = 4;
  options.workers = workers;
  options.steps = steps;
  write_trace(synthetic_trace(3'000, density, 1.1, options), scratch / "T", true);
  return Trace::open(scratch / "T");
}

void expect_same(const TensorProfile& a, const TensorProfile& b) {
  EXPECT_EQ(a.row_density.mean, b.row_density.mean);
  EXPECT_EQ(a.row_density.min, b.row_density.min);
  EXPECT_EQ(a.row_density.max, b.row_density.max);
  EXPECT_EQ(a.density, b.density);
  EXPECT_EQ(a.row_density_of_step, b.row_density_of_step);
  EXPECT_EQ(a.overlap.mean, b.overlap.mean);
  EXPECT_EQ(a.overlap.stdev, b.overlap.stdev);
  EXPECT_EQ(a.overlap.histogram, b.overlap.histogram);
  EXPECT_EQ(a.densification, b.densification);
  EXPECT_EQ(a.skewness, b.skewness);
  EXPECT_EQ(a.blocks, b.blocks);
  ASSERT_EQ(a.hot_rows.size(), b.hot_rows.size());
  for (std::size_t i = 0; i < a.hot_rows.size(); ++i) {
    EXPECT_EQ(a.hot_rows[i].row, b.hot_rows[i].row);
    EXPECT_EQ(a.hot_rows[i].touches, b.hot_rows[i].touches);
  }
  EXPECT_EQ(a.drift, b.drift);
  ASSERT_TRUE(a.zipf && b.zipf);
  EXPECT_EQ(a.zipf->s, b.zipf->s);
  EXPECT_EQ(a.touch_histogram, b.touch_histogram);
}

TEST(Profile, IsTheSameForAnyNumberOfThreads) {
  const Scratch scratch;
  const Trace trace = drawn_trace(scratch, 6, 3, 0.05);
  ProfileOptions options;
  const std::vector<TensorProfile> one = profile(trace, options);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_NEAR(one.front().row_density.mean, 0.05, 1e-12);
  for (const int threads : {2, 3, 8}) {
    options.threads = threads;
    const std::vector<TensorProfile> many = profile(trace, options);
    ASSERT_EQ(many.size(), 1U);
    expect_same(many.front(), one.front());
  }
}

TEST(Profile, OfManyWorkersPairsAnEvenSample) {
  const Scratch scratch;
  const auto pairs = [&](int workers) {
    return profile(drawn_trace(scratch, workers, 2, 0.01), {}).front().overlap.pairs;
  };
  EXPECT_EQ(pairs(1), 0);
  EXPECT_EQ(pairs(3), 2 * 3);
  EXPECT_EQ(pairs(kMaxPairedWorkers), 2 * kMaxPairedWorkers * (kMaxPairedWorkers - 1) / 2);
  EXPECT_EQ(pairs(kMaxPairedWorkers + 44), 2 * kMaxPairedWorkers * (kMaxPairedWorkers - 1) / 2);
}

TEST(Profile, ReportsProgressStepByStep) {
  const Scratch scratch;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  ProfileOptions options;
  options.progress = [&](std::int64_t done, std::int64_t total) { seen.emplace_back(done, total); };
  profile(drawn_trace(scratch, 2, 3, 0.01), options);
  EXPECT_EQ(seen,
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {1, 3}, {2, 3}, {3, 3}}));
}

TEST(Profile, NamesAnInvalidFile) {
  const Scratch scratch;
  const Trace trace = drawn_trace(scratch, 3, 2, 0.01);
  write_all(scratch / "T/w0001.s0001.safetensors", "short");
  ProfileOptions options;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    expect_error<InputError>([&] { profile(trace, options); }, {"w0001.s0001"});
  }
}

}  // namespace
}  // namespace sparsesync
