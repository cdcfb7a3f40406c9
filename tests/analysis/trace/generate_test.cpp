// Trace generators: exact rows of small inputs, distributions of draws, and figures of the real
// data.
#include "analysis/trace/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "engine/support/random_draws.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using Rows = std::vector<Index>;

GenerateOptions options_of(int workers, int steps, Index width = 4) {
  GenerateOptions options;
  options.workers = workers;
  options.steps = steps;
  options.width = width;
  return options;
}

TEST(FromTokens, ReadsBatchesInOrderAndWraps) {
  const std::vector<std::int64_t> tokens{5, 5, 1, 0, 7, 2, 2};
  const TraceSource source = trace_from_tokens(tokens, 10, 3, 0, options_of(2, 3), "here");
  EXPECT_EQ(source.header.tensors, (std::vector<TensorSpec>{{"embedding", 10, 4, DType::f32}}));
  EXPECT_EQ(source.parts(Rank{0}, 0)[0].indices, (Rows{1, 5}));     // 5 5 1
  EXPECT_EQ(source.parts(Rank{1}, 0)[0].indices, (Rows{0, 2, 7}));  // 0 7 2
  EXPECT_EQ(source.parts(Rank{0}, 1)[0].indices, (Rows{2, 5}));     // 2 | 5 5
  EXPECT_EQ(source.parts(Rank{1}, 1)[0].indices, (Rows{0, 1, 7}));  // 1 0 7
  EXPECT_EQ(source.parts(Rank{0}, 2)[0].indices, (Rows{2, 5}));     // 2 2 | 5
}

TEST(FromTokens, ABatchLargerThanTheTextHasAllTokens) {
  const TraceSource source = trace_from_tokens({3, 1, 2}, 4, std::numeric_limits<Index>::max(), 0,
                                               options_of(2, 1), "here");
  EXPECT_EQ(source.parts(Rank{1}, 0)[0].indices, (Rows{1, 2, 3}));
}

TEST(FromTokens, RejectsInvalidInput) {
  const auto refuse = [](std::vector<std::int64_t> tokens, Index rows, Index batch, Index sampled,
                         const GenerateOptions& options, const std::vector<std::string>& parts) {
    expect_error<InputError>(
        [&] { trace_from_tokens(std::move(tokens), rows, batch, sampled, options, "x.npy"); },
        parts);
  };
  refuse({1, 2, -3}, 10, 1, 0, options_of(1, 1), {"x.npy", "-3", "position 2", "negative"});
  refuse({1, 10}, 10, 1, 0, options_of(1, 1), {"x.npy", "10", "position 1", "10 rows"});
  refuse({}, 10, 1, 0, options_of(1, 1), {"no tokens"});
  refuse({1}, 0, 1, 0, options_of(1, 1), {"rows"});
  refuse({1}, 10, 0, 0, options_of(1, 1), {"batch"});
  refuse({1}, 10, 1, -1, options_of(1, 1), {"sampled"});
  refuse({1}, 10, 1, 0, options_of(0, 1), {"0 workers"});
  refuse({1}, 10, 1, 0, options_of(65'537, 1), {"65537 workers"});
  refuse({1}, 10, 1, 0, options_of(1, 0), {"0 steps"});
  refuse({1}, 10, 1, 0, options_of(1, 1, 0), {"width of 0"});
}

TEST(FromTokens, SampledRowsFollowTheLogUniformLaw) {
  const Index rows = 1000;
  const Index draws = 200'000;
  CounterRandom random(3);
  std::vector<double> counts(static_cast<std::size_t>(rows));
  for (Index i = 0; i < draws; ++i)
    ++counts.at(static_cast<std::size_t>(log_uniform_draw(random, rows)));
  for (const Index row : {0, 1, 5, 50}) {
    const auto r = static_cast<double>(row);
    const double share = std::log((r + 2) / (r + 1)) / std::log(static_cast<double>(rows) + 1);
    const double expected = share * static_cast<double>(draws);
    // Five standard deviations of a binomial count. The key is fixed, so the test either always
    // passes or never.
    EXPECT_NEAR(counts[static_cast<std::size_t>(row)], expected, 5 * std::sqrt(expected)) << row;
  }
  EXPECT_EQ(log_uniform_draw(random, 1), 0);
  const Index largest = std::numeric_limits<Index>::max();
  for (int i = 0; i < 1000; ++i) {
    const Index row = log_uniform_draw(random, largest);
    EXPECT_TRUE(row >= 0 && row < largest);
  }
  // Sampled rows are added to the rows of the tokens, and differ between workers.
  const TraceSource source = trace_from_tokens({999}, rows, 1, 100, options_of(2, 1), "here");
  const Rows first = source.parts(Rank{0}, 0)[0].indices;
  EXPECT_GT(first.size(), 30U);
  EXPECT_LE(first.size(), 101U);
  EXPECT_EQ(first.back(), 999);
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  EXPECT_NE(first, source.parts(Rank{1}, 0)[0].indices);
  EXPECT_EQ(first, source.parts(Rank{0}, 0)[0].indices);
}

TEST(FromFields, ColumnsHaveSeparateVocabularies) {
  const NpyArray fields{{0, 2, 1, 0, 4, 1, 3, 0, 0}, {3, 3}};
  const TraceSource merged = trace_from_fields(fields, 2, false, options_of(2, 1), "here");
  // Column 0 contains 0, 0, 3; column 1 contains 2, 4, 0; column 2 contains 1, 1, 0.
  EXPECT_EQ(merged.header.tensors,
            (std::vector<TensorSpec>{{"embedding", 4 + 5 + 2, 4, DType::f32}}));
  EXPECT_EQ(merged.parts(Rank{0}, 0)[0].indices, (Rows{0, 4 + 2, 4 + 4, 9 + 1}));  // samples 0, 1
  EXPECT_EQ(merged.parts(Rank{1}, 0)[0].indices, (Rows{0, 3, 4 + 0, 4 + 2, 9 + 0, 9 + 1}));  // 2, 0
  const TraceSource split = trace_from_fields(fields, 2, true, options_of(2, 1), "here");
  EXPECT_EQ(split.header.tensors, (std::vector<TensorSpec>{{"field00", 4, 4, DType::f32},
                                                           {"field01", 5, 4, DType::f32},
                                                           {"field02", 2, 4, DType::f32}}));
  const auto parts = split.parts(Rank{1}, 0);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].indices, (Rows{0, 3}));
  EXPECT_EQ(parts[1].indices, (Rows{0, 2}));
  EXPECT_EQ(parts[2].indices, (Rows{0, 1}));
}

TEST(FromFields, RejectsInvalidInput) {
  const auto refuse = [](const NpyArray& fields, const std::vector<std::string>& parts) {
    expect_error<InputError>(
        [&] { trace_from_fields(fields, 1, false, options_of(1, 1), "x.npy"); }, parts);
  };
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  refuse({{1, 2}, {2}}, {"one dimension"});
  refuse({{}, {0, 2}}, {"no samples"});
  refuse({{}, {2, 0}}, {"no samples"});
  refuse({{1, 2, 3, -4}, {2, 2}}, {"x.npy", "-4", "sample 1", "field 1", "negative"});
  refuse({{1, kMax}, {1, 2}}, {"too large"});
  refuse({{kMax - 1, kMax - 1}, {1, 2}}, {"can be counted"});
  refuse({{kMax - 1}, {1, 1}}, {"can be counted"});
}

TEST(FromText, UsesTheIdsOfTheText) {
  const Scratch scratch;
  write_all(scratch / "t.txt", "b a a c a b");
  const std::vector<std::filesystem::path> paths{scratch.path()};
  const TraceSource source = trace_from_text(paths, 0, 2, 0, options_of(3, 1));
  EXPECT_EQ(source.header.tensors[0].rows, 3);
  EXPECT_EQ(source.parts(Rank{0}, 0)[0].indices, (Rows{0, 1}));  // b a
  EXPECT_EQ(source.parts(Rank{1}, 0)[0].indices, (Rows{0, 2}));  // a c
  EXPECT_EQ(trace_from_text(paths, 2, 2, 0, options_of(3, 1)).header.tensors[0].rows, 2);
}

TEST(CounterRandom, IsTheSameEverywhere) {
  CounterRandom random(1);
  CounterRandom again(1);
  CounterRandom other(2);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t number = random.next();
    EXPECT_EQ(number, again.next());
    EXPECT_NE(number, other.next());
    seen.insert(number);
  }
  EXPECT_EQ(seen.size(), 1000U);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double u = random.uniform();
    ASSERT_TRUE(u > 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

/// Computes the probability that each row is among `count` successive draws without replacement, by
/// enumeration.
void enumerate(const std::vector<double>& weights, Index count, std::set<std::size_t>& taken,
               double share, std::vector<double>& inclusion) {
  if (count == 0) {
    for (const std::size_t row : taken) inclusion[row] += share;
    return;
  }
  double left = 0;
  for (std::size_t row = 0; row < weights.size(); ++row) {
    if (!taken.contains(row)) left += weights[row];
  }
  for (std::size_t row = 0; row < weights.size(); ++row) {
    if (taken.contains(row)) continue;
    taken.insert(row);
    enumerate(weights, count - 1, taken, share * weights[row] / left, inclusion);
    taken.erase(row);
  }
}

TEST(DrawDistinctZipf, FollowsTheLawOfSuccessiveDraws) {
  constexpr Index kRows = 6;
  constexpr Index kCount = 3;
  constexpr int kTrials = 40'000;
  for (const double s : {0.0, 0.5, 1.0, 2.5}) {
    std::vector<double> weights;
    for (Index row = 0; row < kRows; ++row) weights.push_back(std::pow(row + 1, -s));
    std::vector<double> expected(kRows, 0.0);
    std::set<std::size_t> taken;
    enumerate(weights, kCount, taken, 1, expected);
    std::vector<double> counts(kRows, 0.0);
    CounterRandom random(11);
    for (int trial = 0; trial < kTrials; ++trial) {
      const Rows drawn = draw_distinct_zipf(random, kRows, kCount, s);
      ASSERT_EQ(drawn.size(), std::size_t{kCount});
      for (const Index row : drawn) ++counts[static_cast<std::size_t>(row)];
    }
    for (std::size_t row = 0; row < kRows; ++row) {
      const double deviation = std::sqrt(expected[row] * (1 - expected[row]) / kTrials);
      EXPECT_NEAR(counts[row] / kTrials, expected[row], 5 * deviation + 1e-9)
          << "s " << s << " row " << row;
    }
  }
}

TEST(DrawDistinctZipf, TheTailFollowsTheSameLawAsTheHead) {
  constexpr Index kRows = 400;
  constexpr Index kCount = 60;
  constexpr int kTrials = 20'000;
  // The same draws in two variants: a short head, so that most draws come from the tail, and a head
  // of all rows.
  for (const double s : {0.0, 0.7, 1.0, 1.5}) {
    std::array<std::vector<double>, 2> counts{std::vector<double>(8), std::vector<double>(8)};
    for (const std::size_t variant : {std::size_t{0}, std::size_t{1}}) {
      CounterRandom random(5 + variant);
      for (int trial = 0; trial < kTrials; ++trial) {
        const Rows drawn = draw_distinct_zipf(random, kRows, kCount, s, variant == 0 ? 30 : kRows);
        for (const Index row : drawn) ++counts[variant][static_cast<std::size_t>(row / 50)];
      }
    }
    for (std::size_t range = 0; range < 8; ++range) {
      const double sum = counts[0][range] + counts[1][range];
      EXPECT_NEAR(counts[0][range], counts[1][range], 5 * std::sqrt(sum))
          << "s " << s << " range " << range;
    }
  }
}

TEST(DrawDistinctZipf, WorksAtTheEdges) {
  CounterRandom random(1);
  EXPECT_TRUE(draw_distinct_zipf(random, 10, 0, 1).empty());
  EXPECT_EQ(draw_distinct_zipf(random, 3, 3, 1), (Rows{0, 1, 2}));
  EXPECT_EQ(draw_distinct_zipf(random, 1, 1, 0), (Rows{0}));
  for (const double s : {0.0, 0.999999, 1.0, 1.000001, 1.2, 3.0, 50.0, kMaxZipf}) {
    for (const Index rows : {Index{5000}, Index{1} << 40U, std::numeric_limits<Index>::max()}) {
      const Rows drawn = draw_distinct_zipf(random, rows, 2000, s);
      ASSERT_EQ(drawn.size(), 2000U);
      EXPECT_TRUE(std::adjacent_find(drawn.begin(), drawn.end(), std::greater_equal<>()) ==
                  drawn.end());
      EXPECT_TRUE(drawn.front() >= 0 && drawn.back() < rows);
      if (s == 0 && rows == Index{1} << 40U) {
        const double mean = std::accumulate(drawn.begin(), drawn.end(), 0.0) / 2000;
        EXPECT_NEAR(mean / 0x1p40, 0.5, 0.05);
      }
    }
  }
}

TEST(Synthetic, TouchesTheRequestedShare) {
  for (const double density : {0.0, 0.001, 0.37, 1.0}) {
    const TraceSource source = synthetic_trace(10'000, density, 1.1, options_of(2, 2));
    const Rows rows = source.parts(Rank{1}, 1)[0].indices;
    EXPECT_EQ(static_cast<double>(rows.size()), std::round(density * 10'000));
    EXPECT_EQ(rows, source.parts(Rank{1}, 1)[0].indices);
    if (density > 0 && density < 1) {
      EXPECT_NE(rows, source.parts(Rank{0}, 1)[0].indices);
      EXPECT_NE(rows, source.parts(Rank{1}, 0)[0].indices);
    }
  }
  const auto refuse = [](Index rows, double density, double zipf, const std::string& part) {
    expect_error<InputError>([&] { synthetic_trace(rows, density, zipf, options_of(1, 1)); },
                             {part});
  };
  refuse(10, -0.1, 1, "density");
  refuse(10, 1.1, 1, "density");
  refuse(10, std::nan(""), 1, "density");
  refuse(10, 0.5, -1, "Zipf");
  refuse(10, 0.5, std::numeric_limits<double>::infinity(), "Zipf");
  refuse(0, 0.5, 1, "rows");
  refuse(Index{1} << 40U, 0.5, 1, "lower one");
}

TEST(WriteTrace, WritesTheRowsOfTheSource) {
  const Scratch scratch;
  const TraceSource source = synthetic_trace(1000, 0.1, 1, options_of(3, 2));
  std::vector<Index> seen;
  const TraceSummary summary =
      write_trace(source, scratch / "T", false, [&](Index done, Index) { seen.push_back(done); });
  EXPECT_EQ(seen, (Rows{1, 2, 3, 4, 5, 6}));
  EXPECT_DOUBLE_EQ(summary.touched_rows_mean, 100);
  EXPECT_DOUBLE_EQ(summary.row_density_mean, 0.1);
  const Trace trace = Trace::open(scratch / "T");
  EXPECT_EQ(trace.header(), source.header);
  EXPECT_EQ(trace.load(Rank{2}, 1)[0].indices, source.parts(Rank{2}, 1)[0].indices);
}

/// Returns the mean number of rows per worker and the size of the union in the first step of a
/// source.
std::pair<double, std::size_t> figures(const TraceSource& source) {
  std::set<Index> all;
  double touched = 0;
  for (int worker = 0; worker < source.header.workers; ++worker) {
    const Rows rows = source.parts(Rank{worker}, 0)[0].indices;
    touched += static_cast<double>(rows.size());
    all.insert(rows.begin(), rows.end());
  }
  return {touched / source.header.workers / static_cast<double>(source.header.tensors[0].rows),
          all.size()};
}

TEST(RealData, Lm1b) {
  if (real_data().empty()) GTEST_SKIP() << "the real index data is not available";
  NpyArray tokens = read_npy(real_data() / "lm1b_tokens.npy");
  const auto [density, rows] = figures(
      trace_from_tokens(std::move(tokens.values), 793'471, 2560, 0, options_of(16, 1), "lm1b"));
  EXPECT_NEAR(density, 0.001495, 0.0000005);
  EXPECT_EQ(rows, 9058U);
}

TEST(RealData, Criteo) {
  if (real_data().empty()) GTEST_SKIP() << "the real index data is not available";
  const NpyArray fields = read_npy(real_data() / "criteo_fields.npy");
  const TraceSource source = trace_from_fields(fields, 1024, false, options_of(16, 1), "criteo");
  EXPECT_EQ(source.header.tensors[0].rows, 205'065);
  const auto [density, rows] = figures(source);
  EXPECT_NEAR(density, 0.0305, 0.00005);
  EXPECT_EQ(rows, 46'541U);
  // After splitting, the same rows are touched, each in the tensor of its field.
  const TraceSource split = trace_from_fields(fields, 1024, true, options_of(16, 1), "criteo");
  ASSERT_EQ(split.header.tensors.size(), 26U);
  EXPECT_EQ(split.header.tensors.back().name, "field25");
  std::size_t touched = 0;
  for (const TracePart& part : split.parts(Rank{5}, 0)) touched += part.indices.size();
  EXPECT_EQ(touched, source.parts(Rank{5}, 0)[0].indices.size());
}

}  // namespace
}  // namespace sparsesync
