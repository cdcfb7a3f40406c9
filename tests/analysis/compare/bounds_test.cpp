// The lower bound and the partitioned ideal: the entropy compared with exact numbers, the bytes
// compared with tiny cases and with the ratios of the real data.
#include "analysis/compare/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "analysis/trace/generate.h"
#include "analysis/trace/inputs.h"
#include "tests/support/random.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using testing::Random;

using Sets = std::vector<std::vector<Index>>;

IndexSets views_of(const Sets& sets) {
  return {sets.begin(), sets.end()};
}

TEST(Log2Choose, IsExactForSmallNumbers) {
  // Pascal's triangle: C(62, 31) is below 2^62.
  std::vector<std::vector<std::uint64_t>> choose(63);
  for (std::size_t n = 0; n < choose.size(); ++n) {
    choose[n].assign(n + 1, 1);
    for (std::size_t k = 1; k < n; ++k) choose[n][k] = choose[n - 1][k - 1] + choose[n - 1][k];
    for (std::size_t k = 0; k <= n; ++k) {
      EXPECT_NEAR(log2_choose(static_cast<double>(n), static_cast<double>(k)),
                  std::log2(static_cast<double>(choose[n][k])), 1e-10)
          << n << " choose " << k;
    }
  }
}

/// Computes the sum directly, in extended precision.
double summed_log2_choose(double universe, std::int64_t count) {
  long double bits = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    bits += std::log2(static_cast<long double>(universe) - static_cast<long double>(i)) -
            std::log2(static_cast<long double>(i + 1));
  }
  return static_cast<double>(bits);
}

TEST(Log2Choose, MatchesTheSumForLargeNumbers) {
  struct Case {
    double universe;
    std::int64_t count;
  };
  for (const Case& c :
       {Case{793'471, 1186}, Case{793'471, 100'000}, Case{0x1p33, 1}, Case{0x1p33, 1186},
        Case{0x1p33, 200'000}, Case{0x1p40, 1000}, Case{0x1p53, 1000},
        // On both sides of the switch to another formula.
        Case{1'001'000, 1000}, Case{1'001'000, 1001}, Case{1'001'000, 999}}) {
    const double expected = summed_log2_choose(c.universe, c.count);
    EXPECT_NEAR(log2_choose(c.universe, static_cast<double>(c.count)), expected, 1e-9 * expected)
        << c.universe << ' ' << c.count;
  }
  // Choosing and leaving out are equivalent. The tolerance is the rounding error of numbers near
  // 2^33 · ln 2^33.
  EXPECT_NEAR(log2_choose(0x1p33, 0x1p33 - 10), log2_choose(0x1p33, 10), 1e-3);
  EXPECT_NEAR(log2_choose(2e6, 0.5e6), log2_choose(2e6, 1.5e6), 1e-6);
}

TEST(Log2Choose, IsZeroForNothingAndForAll) {
  for (const double universe : {0.0, 1.0, 100.0, 793'471.0, 0x1p33}) {
    EXPECT_NEAR(log2_choose(universe, 0), 0, 1e-9) << universe;
    EXPECT_NEAR(log2_choose(universe, universe), 0, 1e-9) << universe;
  }
}

TEST(Bounds, AreZeroForOneWorker) {
  const Sets sets{{0, 1, 5}};
  EXPECT_EQ(partitioned_ideal_bytes(10, 8, views_of(sets)), 0);
  EXPECT_EQ(lower_bound_bytes(8, views_of(sets)), 0);
}

TEST(Bounds, MatchAnExampleOfTwoWorkers) {
  // k = 2 and |U| = 3 of 4 rows of 8 bytes. C(4, 2) = 6 and C(4, 3) = 4.
  const Sets sets{{0, 1}, {1, 2}};
  EXPECT_NEAR(partitioned_ideal_bytes(4, 8, views_of(sets)),
              0.5 * ((2 + 3) * 8 + (std::log2(6.0) + 2) / 8), 1e-9);
  // Both workers touched one row: 1 transfer to add it, and 1 back. One worker touched each of the
  // other two rows: 1 transfer each. The bytes are divided by 2 workers.
  EXPECT_NEAR(lower_bound_bytes(8, views_of(sets)), 4.0 * 8 / 2, 1e-12);
}

TEST(Bounds, MatchAnExampleOfThreeWorkers) {
  // k = 1 and |U| = 2. C(4, 1) = 4, C(4, 2) = 6 and C(4, 0) = 1.
  const Sets sets{{0}, {0, 1}, {}};
  const double bits = (2 + std::log2(6.0) + 0) / 3 + std::log2(6.0);
  EXPECT_NEAR(partitioned_ideal_bytes(4, 8, views_of(sets)), 2.0 / 3 * ((1 + 2) * 8 + bits / 8),
              1e-9);
  // Row 0 takes 1 + 2 transfers, and row 1 takes 0 + 2.
  EXPECT_NEAR(lower_bound_bytes(8, views_of(sets)), 5.0 * 8 / 3, 1e-12);
}

TEST(Bounds, AreZeroForEmptyGradients) {
  const Sets sets{{}, {}, {}, {}};
  EXPECT_NEAR(partitioned_ideal_bytes(1000, 8, views_of(sets)), 0, 1e-9);
  EXPECT_EQ(lower_bound_bytes(8, views_of(sets)), 0);
}

TEST(Bounds, TheLowerBoundCountsTransfers) {
  Random random(testing::seed());
  for (const std::size_t workers : {2U, 3U, 5U, 8U}) {
    Sets sets(workers);
    std::map<Index, int> touchers;
    for (std::vector<Index>& set : sets) {
      set = testing::distinct_rows(random, 300, random.below(200));
      for (const Index row : set) ++touchers[row];
    }
    double transfers = 0;
    for (const auto& [row, count] : touchers)
      transfers += count - 1 + static_cast<int>(workers) - 1;
    const double expected = transfers * 512 / static_cast<double>(workers);
    EXPECT_NEAR(lower_bound_bytes(512, views_of(sets)), expected, 1e-9 * expected);
    EXPECT_GT(partitioned_ideal_bytes(300, 512, views_of(sets)), expected);
  }
}

TEST(Bounds, HaveTheDocumentedRatio) {
  const std::filesystem::path data = real_data();
  if (data.empty()) GTEST_SKIP() << "no lm1b_tokens.npy: set SPARSESYNC_DATA to its folder";
  const std::vector<std::int64_t> tokens = read_npy(data / "lm1b_tokens.npy").values;
  constexpr Index kRows = 793'471;
  const std::map<int, double> ratios{{2, 0.73}, {4, 0.83}, {8, 0.90}, {16, 0.95}};
  for (const auto& [workers, ratio] : ratios) {
    GenerateOptions options;
    options.workers = workers;
    options.width = 128;
    const TraceSource source = trace_from_tokens(tokens, kRows, 2560, 0, options, "lm1b");
    Sets sets;
    for (int worker = 0; worker < workers; ++worker)
      sets.push_back(source.parts(Rank{worker}, 0)[0].indices);
    const double lower = lower_bound_bytes(128 * 4, views_of(sets));
    const double ideal = partitioned_ideal_bytes(kRows, 128 * 4, views_of(sets));
    EXPECT_NEAR(lower / ideal, ratio, 0.01) << workers << " workers";
  }
}

}  // namespace
}  // namespace sparsesync
