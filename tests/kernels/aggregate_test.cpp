// unite and aggregate: against sets and maps, by the bits.
#include "kernels/aggregate.h"

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

using Unite = OperationTest;
using Aggregate = OperationTest;

using Sets = std::vector<std::vector<Index>>;

std::vector<Index> united(const Context& context, IndexRange range, const Sets& sets,
                          AggregateWorkspace& workspace) {
  std::vector<std::span<const Index>> views(sets.begin(), sets.end());
  Index total = 0;
  for (const std::vector<Index>& set : sets) total += static_cast<Index>(set.size());
  const Index room = std::min(total, range.size());
  // No more room than is asked for, and a guard behind it.
  std::vector<Index> out(static_cast<std::size_t>(room + 1), -77);
  Index count = -1;
  unite(context, range, views, std::span(out).first(static_cast<std::size_t>(room)), Count(&count),
        workspace);
  EXPECT_TRUE(count >= 0 && count <= room) << count;
  EXPECT_EQ(out.back(), -77);
  out.resize(static_cast<std::size_t>(count));
  return out;
}

std::vector<Index> expected_union(const Sets& sets) {
  std::set<Index> all;
  for (const std::vector<Index>& set : sets) all.insert(set.begin(), set.end());
  return {all.begin(), all.end()};
}

TEST_F(Unite, ByAddressAndByMerging) {
  AggregateWorkspace workspace(context_);
  const Sets sets{{0, 5, 63, 64}, {}, {5, 65, 127}, {0, 127}};
  const std::vector<Index> expected{0, 5, 63, 64, 65, 127};
  static_assert(unites_by_address(128, 9) && !unites_by_address(Index{1} << 40, 9));
  EXPECT_EQ(united(context_, {0, 128}, sets, workspace), expected);
  EXPECT_EQ(united(context_, {0, Index{1} << 40}, sets, workspace), expected);
}

TEST_F(Unite, NothingIsUnitedToNothing) {
  AggregateWorkspace workspace(context_);
  for (const IndexRange range :
       {IndexRange{0, 0}, IndexRange{5, 6}, IndexRange{0, 1000}, IndexRange{7, Index{1} << 61}}) {
    EXPECT_TRUE(united(context_, range, {}, workspace).empty());
    EXPECT_TRUE(united(context_, range, {{}, {}}, workspace).empty());
  }
}

TEST_F(Unite, KeepsWhatIsAtTheEnds) {
  AggregateWorkspace workspace(context_);
  for (const Index begin : {Index{0}, Index{1}, Index{63}, Index{1} << 50}) {
    for (const Index size :
         {Index{1}, Index{2}, Index{63}, Index{64}, Index{65}, Index{128}, Index{1} << 40}) {
      const Index end = begin + size;
      EXPECT_EQ(united(context_, {begin, end}, {{begin}}, workspace), (std::vector<Index>{begin}));
      EXPECT_EQ(united(context_, {begin, end}, {{end - 1}, {begin}, {end - 1}}, workspace),
                expected_union({{begin, end - 1}}));
    }
  }
}

TEST_F(Unite, OnBothSidesOfTheBorder) {
  // 1024 of range for each index: on the border, and one past it.
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  for (const Index total : {1, 10, 300}) {
    for (const Index range :
         {1024 * total - 1, 1024 * total, 1024 * (total + 1) - 1, 1024 * (total + 1)}) {
      EXPECT_EQ(unites_by_address(range, total), range < 1024 * (total + 1)) << range;
      Sets sets;
      Index left = total;
      while (left > 0) {
        const Index count = 1 + random.below(left);
        sets.push_back(distinct_rows(random, range, count));
        left -= count;
      }
      EXPECT_EQ(united(context_, {0, range}, sets, workspace), expected_union(sets)) << range;
    }
  }
}

TEST_F(Unite, RandomSets) {
  AggregateWorkspace workspace(context_);
  Random random(testing::seed());
  int by_address = 0;
  int by_merging = 0;
  for (int round = 0; round < 300; ++round) {
    const Index size = 1 + random.below(Index{1} << random.below(41));
    const Index begin = random.below(Index{1} << 50);
    Sets sets(static_cast<std::size_t>(random.below(9)));
    Index total = 0;
    // Crowded, so that sets overlap.
    const Index crowd = std::min<Index>(size, 1 + random.below(1000));
    for (std::vector<Index>& set : sets) {
      set = distinct_rows(random, crowd, random.below(crowd + 1));
      for (Index& index : set) index += begin + (size - crowd);
      total += static_cast<Index>(set.size());
    }
    ++(unites_by_address(size, total) ? by_address : by_merging);
    ASSERT_EQ(united(context_, {begin, begin + size}, sets, workspace), expected_union(sets))
        << sets.size() << " sets, " << total << " in a range of " << size;
  }
  EXPECT_GT(by_address, 20);
  EXPECT_GT(by_merging, 20);
}

TEST_F(Unite, TakesTheWorkspaceThatItSays) {
  Random random(testing::seed());
  for (const Index range : {Index{64'000}, Index{1} << 24, Index{1} << 40}) {
    const Sets sets{distinct_rows(random, range, 400), distinct_rows(random, range, 600)};
    HostMemory memory;
    const Context context(memory);
    AggregateWorkspace workspace(context);
    united(context, {0, range}, sets, workspace);
    const Index says = unite_workspace_bytes(range, 1000);
    EXPECT_GE(memory.in_use(), says) << range;
    EXPECT_LE(memory.in_use(), says + says / 4) << range;  // a buffer's slack
    const std::int64_t before = memory.allocations();
    united(context, {0, range}, sets, workspace);
    EXPECT_EQ(memory.allocations(), before) << "the second time allocates";
  }
}

TEST_F(Unite, KeepsTheBudget) {
  HostMemory memory(1000);
  const Context context(memory);
  AggregateWorkspace workspace(context);
  Random random(testing::seed());
  const Sets sets{distinct_rows(random, 100'000, 500)};
  const std::vector<std::span<const Index>> views(sets.begin(), sets.end());
  std::vector<Index> out(500);
  Index count = -1;
  EXPECT_THROW(unite(context, {0, 100'000}, views, out, Count(&count), workspace), BudgetError);
  EXPECT_THROW(unite(context, {0, Index{1} << 40}, views, out, Count(&count), workspace),
               BudgetError);
  // A smaller one goes on working.
  EXPECT_EQ(united(context, {0, 640}, {{1, 2}, {2, 639}}, workspace),
            (std::vector<Index>{1, 2, 639}));
}

TEST_F(Unite, WantsRoomForAll) {
  AggregateWorkspace workspace(context_);
  const std::vector<Index> set{1, 2};
  const std::vector<std::span<const Index>> views{set, set};
  std::vector<Index> out(3);
  Index count = -1;
  EXPECT_THROW(unite(context_, {0, 100}, views, out, Count(&count), workspace), ContractError);
}

/// A worker's part.
template <typename T>
struct Part {
  std::vector<Index> indices;
  std::vector<T> values;
};

/// The sums of `parts`, whose values lie at odd addresses.
template <typename T>
std::vector<T> aggregated(const Context& context, const std::vector<Index>& rows,
                          const std::vector<Part<T>>& parts, Index width, double scale,
                          AggregateWorkspace& workspace) {
  std::deque<Unaligned<T>> memory;
  std::vector<RowSparse> views;
  for (const Part<T>& part : parts) {
    memory.emplace_back(part.values, width);
    views.push_back({part.indices, memory.back().matrix()});
  }
  std::vector<T> out(rows.size() * static_cast<std::size_t>(width));
  // What is there before does not matter; all bits set is a NaN where there is one.
  if (!out.empty()) std::memset(static_cast<void*>(out.data()), 0xFF, out.size() * sizeof(T));
  aggregate(context, rows, views, scale, matrix_of(out, width), workspace);
  return out;
}

/// The same by the definition.
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

TEST_F(Aggregate, SumsPartByPart) {
  for_each_dtype([&]<typename T>(T) {
    AggregateWorkspace workspace(context_);
    const std::vector<Part<T>> parts{{{1, 5}, values_of<T>({1, 10, 2, 20})},
                                     {},
                                     {{0, 5, 9}, values_of<T>({3, 30, 4, 40, 5, 50})},
                                     {{5}, values_of<T>({6, 60})}};
    EXPECT_EQ(bits_of(aggregated<T>(context_, {0, 1, 5, 9}, parts, 2, 1, workspace)),
              bits_of(values_of<T>({3, 30, 1, 10, 12, 120, 5, 50})));
    // An announced row that nobody touched is zero.
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
  // Rounded after each addition it would be 256 in every order that begins with 256.
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, {large, one, one}, 1, 1, workspace)),
            bits_of(values_of<bf16>({258})));
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, {large, one}, 1, 1, workspace)),
            bits_of(values_of<bf16>({256})));
  EXPECT_EQ(bits_of(aggregated<bf16>(context_, {0}, {large, one, one, one}, 1, 1, workspace)),
            bits_of(values_of<bf16>({260})));
}

TEST_F(Aggregate, SumsF64InF64AndF16InF32) {
  AggregateWorkspace workspace(context_);
  // f32 holds no such sum.
  const std::vector<Part<double>> wide{{{0}, {0x1p40}}, {{0}, {1}}, {{0}, {0x1p-12}}};
  EXPECT_EQ(aggregated<double>(context_, {0}, wide, 1, 1, workspace)[0], 0x1p40 + 1 + 0x1p-12);
  // f16 holds integers up to 2048: rounded after each addition it would stay there.
  const Part<f16> large{{0}, values_of<f16>({2048})};
  const Part<f16> one{{0}, values_of<f16>({1})};
  EXPECT_EQ(bits_of(aggregated<f16>(context_, {0}, {large, one, one}, 1, 1, workspace)),
            bits_of(values_of<f16>({2050})));
  EXPECT_EQ(bits_of(aggregated<f16>(context_, {0}, {large, one}, 1, 1, workspace)),
            bits_of(values_of<f16>({2048})));
  // Past its largest number and back.
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

/// The mean of three numbers as it must be, and that other ways to make it show.
template <typename T>
void expect_one_multiplication(const Context& context) {
  AggregateWorkspace workspace(context);
  constexpr double kScale = 1.0 / 3;
  constexpr T kThird = T{1} / 3;
  // Where a division, or a multiplication of each, gives other bits.
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
  // bf16: the product is rounded, not the sum. 257 · 0.75 is 192.75; had 257 been rounded to 256 it
  // were 192.
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

TEST_F(Aggregate, NanAndInfinityTravel) {
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
    Sets sets;
    for (Part<T>& part : parts) {
      part.indices =
          distinct_rows(random, universe, random.below(std::min<Index>(universe, 150) + 1));
      for (Index& index : part.indices) index += first;
      sets.push_back(part.indices);
      for (Index i = 0; i < static_cast<Index>(part.indices.size()) * width; ++i) {
        part.values.push_back(
            value_of<T>((random.uniform() - 0.5) * (random.below(4) == 0 ? 0x1p12 : 4.0)));
      }
    }
    const std::vector<Index> rows = united(context, {first, first + universe}, sets, workspace);
    ASSERT_EQ(rows, expected_union(sets));
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
  // f16 and bf16 keep so few of the bits that it seldom shows; integers have no order.
  EXPECT_TRUE(order_shows || sizeof(T) == 2 || std::is_integral_v<T>)
      << "no case in which the order of the parts changes a bit";
}

TEST_F(Aggregate, GivesTheBitsOfSummingInOrder) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) { expect_random_sums<T>(context_, random); });
}

TEST_F(Aggregate, AnIndexThatIsNotInTheUnionIsABug) {
  AggregateWorkspace workspace(context_);
  for (const Index index : {0, 2, 4, 6}) {
    EXPECT_THROW(aggregated<float>(context_, {1, 3, 5}, {{{index}, {1}}}, 1, 1, workspace),
                 ContractError)
        << index;
  }
  EXPECT_THROW(aggregated<float>(context_, {}, {{{0}, {1}}}, 1, 1, workspace), ContractError);
}

TEST_F(Aggregate, AllocatesNothingTheSecondTime) {
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
