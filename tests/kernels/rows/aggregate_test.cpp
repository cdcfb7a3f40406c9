// ctest: DEVICES RACES
// aggregate(), compared bit by bit with sums in a std::map.
#include "kernels/rows/aggregate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

using Aggregate = OperationTest;

/// The rows of one worker.
template <typename T>
struct Part {
  std::vector<Index> indices;
  std::vector<T> values;
};

/// Returns the union of the rows of all parts.
template <typename T>
std::vector<Index> union_of(const std::vector<Part<T>>& parts) {
  std::set<Index> all;
  for (const Part<T>& part : parts) all.insert(part.indices.begin(), part.indices.end());
  return {all.begin(), all.end()};
}

/// Sums `parts` with aggregate(). Their values lie at odd addresses unless `aligned`.
template <typename T>
std::vector<T> aggregated(const Context& context, const std::vector<Index>& rows,
                          const std::vector<Part<T>>& parts, Index width, double scale,
                          AggregateWorkspace& workspace, bool aligned = false) {
  std::deque<Unaligned<T>> memory;
  std::vector<RowSparse> views;
  for (const Part<T>& part : parts) {
    const ConstMatrix values =
        aligned ? matrix_of(part.values, width) : memory.emplace_back(part.values, width).matrix();
    views.push_back({part.indices, values});
  }
  std::vector<T> out(rows.size() * static_cast<std::size_t>(width));
  // Previous contents must not matter. All bits set is a NaN in floating-point types.
  if (!out.empty()) std::memset(static_cast<void*>(out.data()), 0xFF, out.size() * sizeof(T));
  aggregate(context, rows, views, scale, matrix_of(out, width), workspace);
  return out;
}

/// Computes the same sums by the definition.
template <typename T>
std::vector<T> expected_sums(const std::vector<Index>& rows, const std::vector<Part<T>>& parts,
                             Index width, double scale) {
  using Sum = typename ValueTraits<T>::Sum;
  std::map<Index, std::vector<Sum>> sums;
  for (const Index row : rows) sums[row].assign(static_cast<std::size_t>(width), Sum{0});
  for (const Part<T>& part : parts) {
    for (std::size_t i = 0; i < part.indices.size(); ++i) {
      std::vector<Sum>& sum = sums.at(part.indices[i]);
      for (std::size_t column = 0; column < sum.size(); ++column) {
        sum[column] += ValueTraits<T>::widen(part.values[i * sum.size() + column]);
      }
    }
  }
  std::vector<T> expected;
  for (const auto& [row, sum] : sums) {
    for (const Sum element : sum) expected.push_back(rounded<T>(element * static_cast<Sum>(scale)));
  }
  return expected;
}

TEST_F(Aggregate, SumsAllParts) {
  for_each_dtype([&]<typename T>(T) {
    AggregateWorkspace workspace(context_);
    const std::vector<Part<T>> parts{{{1, 5}, values_of<T>({1, 10, 2, 20})},
                                     {},
                                     {{0, 5, 9}, values_of<T>({3, 30, 4, 40, 5, 50})},
                                     {{5}, values_of<T>({6, 60})}};
    EXPECT_EQ(bits_of(aggregated<T>(context_, {0, 1, 5, 9}, parts, 2, 1, workspace)),
              bits_of(values_of<T>({3, 30, 1, 10, 12, 120, 5, 50})));
    // A row of the union that no part contains is zero.
    EXPECT_EQ(bits_of(aggregated<T>(context_, {0, 1, 3, 5, 9}, parts, 2, 1, workspace)),
              bits_of(values_of<T>({3, 30, 1, 10, 0, 0, 12, 120, 5, 50})));
    EXPECT_EQ(bits_of(aggregated<T>(context_, {3}, {}, 2, 1, workspace)),
              bits_of(values_of<T>({0, 0})));
    EXPECT_TRUE(aggregated<T>(context_, {}, {{}, {}}, 2, 1, workspace).empty());
  });
}

TEST_F(Aggregate, SumsInTheOrderOfTheRanks) {
  AggregateWorkspace workspace(context_);
  const Part<float> large{{7}, {0x1p24F}};
  const Part<float> one{{7}, {1}};
  EXPECT_EQ(aggregated<float>(context_, {7}, {large, one, one}, 1, 1, workspace)[0], 0x1p24F);
  EXPECT_EQ(aggregated<float>(context_, {7}, {one, large, one}, 1, 1, workspace)[0],
            0x1p24F);  // ties to even
  EXPECT_EQ(aggregated<float>(context_, {7}, {one, one, large}, 1, 1, workspace)[0], 0x1p24F + 2);
}

TEST_F(Aggregate, SumsBf16InF32AndRoundsOnce) {
  AggregateWorkspace workspace(context_);
  const Part<bf16> large{{0}, values_of<bf16>({256})};
  const Part<bf16> one{{0}, values_of<bf16>({1})};
  // If each addition were rounded, the sum would be 256 in every order that begins with 256.
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, {large, one, one}, 1, 1, workspace)),
            bits_of(values_of<bf16>({258})));
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, {large, one}, 1, 1, workspace)),
            bits_of(values_of<bf16>({256})));
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, {large, one, one, one}, 1, 1, workspace)),
            bits_of(values_of<bf16>({260})));
}

TEST_F(Aggregate, SumsF64InF64AndF16InF32) {
  AggregateWorkspace workspace(context_);
  // f32 cannot represent this sum.
  const std::vector<Part<double>> wide{{{0}, {0x1p40}}, {{0}, {1}}, {{0}, {0x1p-12}}};
  EXPECT_EQ(aggregated<double>(context_, {0}, wide, 1, 1, workspace)[0], 0x1p40 + 1 + 0x1p-12);
  // f16 represents all integers up to 2048. If each addition were rounded, the sum would stay at
  // 2048.
  const Part<f16> large{{0}, values_of<f16>({2048})};
  const Part<f16> one{{0}, values_of<f16>({1})};
  EXPECT_EQ(bits_of(aggregated<f16>(context_, {0}, {large, one, one}, 1, 1, workspace)),
            bits_of(values_of<f16>({2050})));
  EXPECT_EQ(bits_of(aggregated<f16>(context_, {0}, {large, one}, 1, 1, workspace)),
            bits_of(values_of<f16>({2048})));
  // A partial sum exceeds the largest f16, and the total does not.
  const Part<f16> most{{0}, values_of<f16>({65504})};
  const Part<f16> least{{0}, values_of<f16>({-65504})};
  EXPECT_EQ(bits_of(aggregated<f16>(context_, {0}, {most, most, least}, 1, 1, workspace)),
            bits_of(values_of<f16>({65504})));
}

TEST_F(Aggregate, IntegersWrap) {
  AggregateWorkspace workspace(context_);
  const auto wrap = [&]<typename T>(T) {
    constexpr T kMost = std::numeric_limits<T>::max();
    constexpr T kLeast = std::numeric_limits<T>::min();
    const std::vector<Part<T>> parts{{{0, 1}, {kMost, kLeast}}, {{0, 1}, {kMost, -1}}, {{0}, {5}}};
    EXPECT_EQ(aggregated<T>(context_, {0, 1}, parts, 1, 1, workspace), (std::vector<T>{3, kMost}));
  };
  wrap(std::int32_t{});
  wrap(std::int64_t{});
}

/// Checks that a mean of three numbers is one multiplication of their sum, with inputs for which
/// other computations give other bits.
template <typename T>
void expect_one_multiplication(const Context& context) {
  AggregateWorkspace workspace(context);
  constexpr double kScale = 1.0 / 3;
  constexpr T kThird = T{1} / 3;
  // Set if a division, or a multiplication of each number, gives other bits.
  bool unlike_division = false;
  bool unlike_each = false;
  for (int i = 1; i < 100; ++i) {
    const auto a = static_cast<T>(i);
    const T b = a * static_cast<T>(0.7);
    const T c = a * static_cast<T>(1.1);
    const std::vector<Part<T>> parts{{{0}, {a}}, {{0}, {b}}, {{0}, {c}}};
    const T sum = T{0} + a + b + c;
    EXPECT_EQ(aggregated<T>(context, {0}, parts, 1, kScale, workspace)[0], sum * kThird) << i;
    unlike_division = unlike_division || sum * kThird != sum / 3;
    unlike_each = unlike_each || sum * kThird != a * kThird + b * kThird + c * kThird;
  }
  EXPECT_TRUE(unlike_division);
  EXPECT_TRUE(unlike_each);
}

TEST_F(Aggregate, AMeanIsOneMultiplicationAfterTheSum) {
  expect_one_multiplication<float>(context_);
  expect_one_multiplication<double>(context_);
  // For bf16, only the product is rounded, not the sum. 257 · 0.75 is 192.75, which rounds to 193.
  // With the sum rounded to 256 first, the result would be 192.
  AggregateWorkspace workspace(context_);
  const std::vector<Part<bf16>> parts{{{0}, values_of<bf16>({256})}, {{0}, values_of<bf16>({1})}};
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, parts, 1, 0.75, workspace)),
            bits_of(values_of<bf16>({193})));
}

TEST_F(Aggregate, NegativeZerosSumToZero) {
  for_each_float_dtype([&]<typename T>(T) {
    AggregateWorkspace workspace(context_);
    const Part<T> negative{{4}, values_of<T>({-0.0})};
    for (const double scale : {1.0, 0.5}) {
      EXPECT_EQ(bits_of(aggregated<T>(context_, {4}, {negative}, 1, scale, workspace)),
                bits_of(values_of<T>({0.0})));
      EXPECT_EQ(bits_of(aggregated<T>(context_, {4}, {negative, negative}, 1, scale, workspace)),
                bits_of(values_of<T>({0.0})));
    }
  });
}

TEST_F(Aggregate, NanAndInfinityPropagate) {
  for_each_float_dtype([&]<typename T>(T) {
    AggregateWorkspace workspace(context_);
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<Part<T>> parts{{{0, 1}, values_of<T>({kInf, 1, kNan, kInf})},
                                     {{1}, values_of<T>({1, -kInf})}};
    const std::vector<T> out = aggregated<T>(context_, {0, 1}, parts, 2, 0.5, workspace);
    EXPECT_EQ(ValueTraits<T>::widen(out[0]), kInf);
    EXPECT_EQ(ValueTraits<T>::widen(out[1]), 0.5);
    EXPECT_NE(ValueTraits<T>::widen(out[2]), ValueTraits<T>::widen(out[2]));
    EXPECT_NE(ValueTraits<T>::widen(out[3]), ValueTraits<T>::widen(out[3]));
  });
}

template <typename T>
void expect_random_sums(const Context& context, Random& random) {
  AggregateWorkspace workspace(context);
  bool order_shows = false;
  for (int round = 0; round < 60; ++round) {
    const Index width = std::vector<Index>{1, 3, 32}[static_cast<std::size_t>(random.below(3))];
    const Index universe = 1 + random.below(round % 2 == 0 ? 200 : Index{1} << 40);
    const Index first = random.below(Index{1} << 40);
    std::vector<Part<T>> parts(static_cast<std::size_t>(random.below(9)));
    for (Part<T>& part : parts) {
      part.indices =
          distinct_rows(random, universe, random.below(std::min<Index>(universe, 150) + 1));
      for (Index& index : part.indices) index += first;
      for (Index i = 0; i < static_cast<Index>(part.indices.size()) * width; ++i) {
        part.values.push_back(
            value_of<T>((random.uniform() - 0.5) * (random.below(4) == 0 ? 0x1p12 : 4.0)));
      }
    }
    const std::vector<Index> rows = union_of(parts);
    const auto choice = std::is_integral_v<T> ? 0 : static_cast<std::size_t>(random.below(3));
    const double scale = std::vector<double>{1, 1.0 / 3, 1.0 / 8}[choice];
    const std::vector<T> out = aggregated<T>(context, rows, parts, width, scale, workspace);
    ASSERT_EQ(bits_of(out), bits_of(expected_sums<T>(rows, parts, width, scale)))
        << "round " << round;
    std::reverse(parts.begin(), parts.end());
    const std::vector<T> reversed = aggregated<T>(context, rows, parts, width, scale, workspace);
    ASSERT_EQ(bits_of(reversed), bits_of(expected_sums<T>(rows, parts, width, scale)))
        << "reversed, round " << round;
    order_shows = order_shows || bits_of(out) != bits_of(reversed);
  }
  // f16 and bf16 keep so few bits that the order rarely matters; integer sums do not depend on it.
  EXPECT_TRUE(order_shows || sizeof(T) == 2 || std::is_integral_v<T>)
      << "the order of the parts changed no bit in any case";
}

TEST_F(Aggregate, HasTheBitsOfSummingInOrder) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) { expect_random_sums<T>(context_, random); });
}

/// Draws numbers whose sums depend on the order of addition.
template <typename T>
std::vector<T> random_values(Random& random, Index count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    value = value_of<T>((random.uniform() - 0.5) * (random.below(4) == 0 ? 0x1p12 : 4.0));
  }
  return values;
}

/// Draws parts of `universe` rows. Most parts contain the first rows.
template <typename T>
std::vector<Part<T>> skewed_parts(Random& random, Index number, Index universe, Index width) {
  std::vector<Part<T>> parts(static_cast<std::size_t>(number));
  for (Part<T>& part : parts) {
    for (Index row = 0; row < universe; ++row) {
      // Some hot rows per hundred, which most parts contain.
      const bool hot = row % 100 < 10 && row < universe / 2;
      if (random.below(hot ? 8 : 7) >= (hot ? 1 : 6)) part.indices.push_back(row * row + 3);
    }
    part.values = random_values<T>(random, static_cast<Index>(part.indices.size()) * width);
  }
  return parts;
}

template <typename T>
void expect_sums_of(const Context& context, const std::vector<Part<T>>& parts, Index width) {
  AggregateWorkspace workspace(context);
  const std::vector<Index> rows = union_of(parts);
  const double scale = std::is_integral_v<T> ? 1 : 1.0 / 3;
  const auto expected = bits_of(expected_sums<T>(rows, parts, width, scale));
  for (const bool aligned : {false, true}) {
    ASSERT_EQ(bits_of(aggregated<T>(context, rows, parts, width, scale, workspace, aligned)),
              expected)
        << parts.size() << " parts, " << rows.size() << " rows of " << width << ", aligned "
        << aligned;
  }
}

TEST_F(Aggregate, RowsOfAnyWidth) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 2, 4, 6, 8, 31, 33, 64, 100, 257}) {
      expect_sums_of<T>(context_, skewed_parts<T>(random, 5, 40, width), width);
    }
  });
}

TEST_F(Aggregate, FewWideRows) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {2'048, 5'003}) {
      expect_sums_of<T>(context_, skewed_parts<T>(random, 3, 5, width), width);
    }
  });
}

TEST_F(Aggregate, ManyRows) {
  Random random(testing::seed());
  for (const Index rows : {31, 32, 33, 255, 256, 257, 1'024, 5'000, 40'000}) {
    expect_sums_of<float>(context_, skewed_parts<float>(random, 8, rows, 1), 1);
    if (rows <= 5'000) expect_sums_of<bf16>(context_, skewed_parts<bf16>(random, 8, rows, 8), 8);
  }
}

TEST_F(Aggregate, ManyParts) {
  Random random(testing::seed());
  for (const Index parts : {9, 17, 32, 33, 64, 65, 130, 257, 520, 1'000, 1'024, 1'025, 2'100}) {
    const Index rows = 20'000 / parts;
    expect_sums_of<float>(context_, skewed_parts<float>(random, parts, rows, 2), 2);
    expect_sums_of<f16>(context_, skewed_parts<f16>(random, parts, rows, 1), 1);
    expect_sums_of<std::int64_t>(context_, skewed_parts<std::int64_t>(random, parts, rows, 1), 1);
  }
}

TEST_F(Aggregate, RowsWithoutColumns) {
  AggregateWorkspace workspace(context_);
  const std::vector<Index> rows{2, 7};
  const std::vector<RowSparse> parts{{rows, {nullptr, DType::f32, 2, 0}}};
  aggregate(context_, rows, parts, 1, {nullptr, DType::f32, 2, 0}, workspace);
}

TEST_F(Aggregate, PartsMustMatchTheResult) {
  AggregateWorkspace workspace(context_);
  const std::vector<Index> rows{2};
  std::vector<float> sums(2);
  for (const ConstMatrix& values :
       {ConstMatrix{nullptr, DType::f64, 1, 2}, ConstMatrix{nullptr, DType::f32, 1, 1}}) {
    const std::vector<RowSparse> parts{{rows, values}};
    EXPECT_THROW(aggregate(context_, rows, parts, 1, matrix_of(sums, 2), workspace), ContractError);
  }
}

TEST_F(Aggregate, AnIndexThatIsNotInTheUnionIsAContractError) {
  AggregateWorkspace workspace(context_);
  for (const Index index : {0, 2, 4, 6}) {
    EXPECT_THROW(aggregated<float>(context_, {1, 3, 5}, {{{index}, {1}}}, 1, 1, workspace),
                 ContractError)
        << index;
  }
  EXPECT_THROW(aggregated<float>(context_, {}, {{{0}, {1}}}, 1, 1, workspace), ContractError);
  // The same with several blocks: an index below the union, between two of its rows, and above it.
  std::vector<Index> rows(3'000);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 10 + 2 * static_cast<Index>(i);
  for (const Index index : {Index{9}, Index{521}, Index{4'107}, Index{6'009}, Index{1} << 60}) {
    EXPECT_THROW(aggregated<float>(context_, rows, {{{10}, {1}}, {{index}, {1}}}, 1, 1, workspace),
                 ContractError)
        << index;
  }
}

TEST_F(Aggregate, OnAGpuStaysInsideItsMemoryForInvalidIndices) {
  if (!testing::on_cuda()) GTEST_SKIP() << "undefined on the CPU; GPUs report decoder faults late";
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  std::vector<Index> rows(700);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 2 * static_cast<Index>(i);
  for (int round = 0; round < 20; ++round) {
    std::vector<Part<float>> parts(3);
    for (Part<float>& part : parts) {
      part.indices.resize(static_cast<std::size_t>(1 + random.below(2'000)));
      for (Index& index : part.indices) index = random.below(10) * random.below(200) - 5;
      part.values.resize(part.indices.size());
    }
    EXPECT_THROW(aggregated<float>(context_, rows, parts, 1, 1, workspace), ContractError);
  }
}

TEST_F(Aggregate, AllocatesNothingInTheSecondCall) {
  for_each_dtype([&]<typename T>(T) {
    AggregateWorkspace workspace(context_);
    const std::vector<Part<T>> parts{{{1, 5}, values_of<T>({1, 2})}, {{5}, values_of<T>({3})}};
    aggregated<T>(context_, {1, 5}, parts, 1, 1, workspace);
    const std::int64_t before = memory_.allocations();
    aggregated<T>(context_, {1, 5}, parts, 1, 1, workspace);
    EXPECT_EQ(memory_.allocations(), before);
  });
}

}  // namespace
}  // namespace sparsesync
