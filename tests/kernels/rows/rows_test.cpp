// ctest: DEVICES
// Operations that copy and add rows.
#include "kernels/rows/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/rows/cast.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Rows = OperationTest;

TEST_F(Rows, GatherCopiesColumnsOfRows) {
  for_each_dtype([&]<typename T>(T) {
    const std::vector<T> from = values_of<T>({0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});
    const std::vector<Index> rows{2, 0, 2};
    std::vector<T> out(6);
    gather_rows(context_, matrix_of(from, 4), rows, 1, matrix_of(out, 2));
    EXPECT_EQ(bits_of(out), bits_of(values_of<T>({21, 22, 1, 2, 21, 22})));
    std::vector<T> whole(12);
    const std::vector<Index> all{0, 1, 2};
    gather_rows(context_, matrix_of(from, 4), all, 0, matrix_of(whole, 4));
    EXPECT_EQ(bits_of(whole), bits_of(from));
    std::vector<T> last(1);
    const std::vector<Index> one{1};
    gather_rows(context_, Unaligned<T>(from, 4).matrix(), one, 3, matrix_of(last, 1));
    EXPECT_EQ(bits_of(last), bits_of(values_of<T>({13})));
    gather_rows(context_, matrix_of(from, 4), {}, 0, Matrix{nullptr, ValueTraits<T>::dtype, 0, 4});
  });
}

TEST_F(Rows, ScatterWritesColumnsOfRowsAndNoOthers) {
  for_each_dtype([&]<typename T>(T) {
    const std::vector<T> from = values_of<T>({1, 2, 3, 4});
    std::vector<T> out(12, value_of<T>(-7));
    const std::vector<Index> rows{2, 0};
    scatter_rows(context_, matrix_of(from, 2), rows, 1, matrix_of(out, 4));
    EXPECT_EQ(bits_of(out), bits_of(values_of<T>({-7, 3, 4, -7, -7, -7, -7, -7, -7, 1, 2, -7})));
    scatter_rows(context_, Unaligned<T>(from, 2).matrix(), rows, 2, matrix_of(out, 4));
    EXPECT_EQ(bits_of(out), bits_of(values_of<T>({-7, 3, 3, 4, -7, -7, -7, -7, -7, 1, 1, 2})));
    scatter_rows(context_, ConstMatrix{nullptr, ValueTraits<T>::dtype, 0, 4}, {}, 0,
                 matrix_of(out, 4));
  });
}

TEST_F(Rows, ScatterUndoesGather) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    constexpr Index kRows = 50;
    constexpr Index kWidth = 12;
    std::vector<T> numbers;
    for (Index i = 0; i < kRows * kWidth; ++i)
      numbers.push_back(value_of<T>(static_cast<double>(random.below(128))));
    const std::vector<T> from = numbers;
    const std::vector<Index> rows = testing::distinct_rows(random, kRows, 20);
    std::vector<T> out(from.size());
    for (const Index columns : {1, 3, 4, 12}) {
      for (Index first = 0; first < kWidth; first += columns) {
        std::vector<T> slice(static_cast<std::size_t>(20 * columns));
        gather_rows(context_, matrix_of(from, kWidth), rows, first, matrix_of(slice, columns));
        scatter_rows(context_, matrix_of(std::as_const(slice), columns), rows, first,
                     matrix_of(out, kWidth));
      }
      std::vector<T> expected(from.size());
      for (const Index row : rows) {
        for (Index column = 0; column < kWidth; ++column) {
          const auto at = static_cast<std::size_t>(row * kWidth + column);
          expected[at] = from[at];
        }
      }
      EXPECT_EQ(bits_of(out), bits_of(expected)) << columns << " columns";
      out.assign(out.size(), T{});
    }
  });
}

TEST_F(Rows, GatherAndScatterWideRows) {
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {127, 128, 129, 513, 2056, 9000}) {
      for (const Index first_column : {0, 3, 4}) {
        SCOPED_TRACE(std::to_string(width) + " from " + std::to_string(first_column));
        constexpr Index kRowCount = 4;
        std::vector<T> from;
        for (Index i = 0; i < kRowCount * width; ++i) {
          from.push_back(value_of<T>(static_cast<double>(i * 37 % 255 - 127)));
        }
        const std::vector<Index> rows{3, 0, 2};
        const Index columns = width - first_column;
        std::vector<T> slice(static_cast<std::size_t>(std::ssize(rows) * columns));
        gather_rows(context_, matrix_of(std::as_const(from), width), rows, first_column,
                    matrix_of(slice, columns));
        std::vector<T> to(from.size());
        scatter_rows(context_, matrix_of(std::as_const(slice), columns), rows, first_column,
                     matrix_of(to, width));
        synchronize(context_);
        std::vector<T> taken;
        std::vector<T> expected(from.size());
        for (const Index row : rows) {
          for (Index i = row * width + first_column; i < (row + 1) * width; ++i) {
            const auto at = static_cast<std::size_t>(i);
            taken.push_back(from[at]);
            expected[at] = from[at];
          }
        }
        ASSERT_EQ(bits_of(slice), bits_of(taken));
        ASSERT_EQ(bits_of(to), bits_of(expected));
      }
    }
  });
}

TEST_F(Rows, CopyAndFillZero) {
  std::vector<std::byte> from{std::byte{1}, std::byte{2}, std::byte{3}};
  std::vector<std::byte> to(5, std::byte{9});
  copy(context_, from, to.data() + 1);
  EXPECT_EQ(to, (std::vector<std::byte>{std::byte{9}, std::byte{1}, std::byte{2}, std::byte{3},
                                        std::byte{9}}));
  fill_zero(context_, std::span(to).subspan(1, 2));
  EXPECT_EQ(to, (std::vector<std::byte>{std::byte{9}, std::byte{0}, std::byte{0}, std::byte{3},
                                        std::byte{9}}));
  copy(context_, {}, nullptr);
  fill_zero(context_, {});
}

TEST_F(Rows, ShiftNumberAndInvert) {
  const std::vector<Index> indices{0, 5, Index{1} << 40};
  std::vector<Index> shifted(3);
  shift(context_, indices, 7, shifted);
  EXPECT_EQ(shifted, (std::vector<Index>{7, 12, (Index{1} << 40) + 7}));
  shift(context_, shifted, -7, shifted);  // in place
  EXPECT_EQ(shifted, indices);

  std::vector<Index> numbers(4, -1);
  number(context_, numbers);
  EXPECT_EQ(numbers, (std::vector<Index>{0, 1, 2, 3}));

  const std::vector<Index> order{2, 0, 3, 1};
  std::vector<Index> places(4, -1);
  invert(context_, order, places);
  EXPECT_EQ(places, (std::vector<Index>{1, 3, 0, 2}));

  shift(context_, {}, 1, {});
  number(context_, {});
  invert(context_, {}, {});
}

TEST_F(Rows, StartSumsEqualsZeroingAndAdding) {
  for_each_dtype([&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    const std::vector<T> from = values_of<T>({1, 10, 2, 20});
    std::vector<Sum> sums{100, 200, 300, 400, 500};
    start_sums(context_, Unaligned<T>(from, 2).matrix(),
               {reinterpret_cast<std::byte*>(sums.data()), ValueTraits<T>::sum_dtype, 2, 2});
    EXPECT_EQ(sums, (std::vector<Sum>{1, 10, 2, 20, 500}));
    start_sums(context_, {nullptr, ValueTraits<T>::dtype, 1, 0},
               {nullptr, ValueTraits<T>::sum_dtype, 1, 0});
  });
  std::vector<float> sums{7};
  start_sums(context_, matrix_of(std::vector<float>{-0.0F}, 1), sums_of<float>(sums, 1));
  EXPECT_EQ(bits_of(sums), bits_of(std::vector<float>{0}));
}

TEST_F(Rows, AddRowsAddsWithRepeats) {
  for_each_dtype([&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    const std::vector<T> from = values_of<T>({1, 10, 2, 20, 4, 40});
    std::vector<Sum> sums{100, 200, 300, 400, 500, 600};
    const std::vector<Index> rows{2, 0, 2};
    add_rows(context_, Unaligned<T>(from, 2).matrix(), rows, sums_of<T>(sums, 2));
    EXPECT_EQ(sums, (std::vector<Sum>{102, 220, 300, 400, 505, 650}));
    add_rows(context_, ConstMatrix{nullptr, ValueTraits<T>::dtype, 0, 2}, {}, sums_of<T>(sums, 2));
    EXPECT_EQ(sums[0], 102);
  });
}

/// @param large  a power of two. Adding 1 in the sum type does not change it, but adding 1 + 1
///         does.
template <typename T>
void expect_order_of_addition(const Context& context, T large) {
  using Sum = typename ValueTraits<T>::Sum;
  const std::vector<Index> same{0, 0, 0};
  const T one = value_of<T>(1);
  std::vector<Sum> sum{0};
  const std::vector<T> falling{large, one, one};
  add_rows(context, matrix_of(falling, 1), same, sums_of<T>(sum, 1));
  EXPECT_EQ(sum[0], ValueTraits<T>::widen(large));
  sum[0] = 0;
  const std::vector<T> rising{one, one, large};
  add_rows(context, matrix_of(rising, 1), same, sums_of<T>(sum, 1));
  EXPECT_EQ(sum[0], ValueTraits<T>::widen(large) + 2);
}

TEST_F(Rows, AddRowsAddsInOrder) {
  expect_order_of_addition<float>(context_, 0x1p24F);
  expect_order_of_addition<bf16>(context_, value_of<bf16>(0x1p24));
  expect_order_of_addition<double>(context_, 0x1p53);
  // The sums of f16 are f32, which represents 2048 + 1 + 1 in any order of additions. f16 does not.
  std::vector<float> sum{0};
  const std::vector<f16> values = values_of<f16>({2048, 1, 1});
  add_rows(context_, matrix_of(values, 1), std::vector<Index>{0, 0, 0}, sums_of<f16>(sum, 1));
  EXPECT_EQ(sum[0], 2050);
}

/// Rows like the most frequent words of a Zipf distribution: a row of many terms among rows of a
/// few.
TEST_F(Rows, AddRowsAddsManyTermsOfARowInOrder) {
  testing::Random random(testing::seed());
  constexpr Index kTerms = 700;
  constexpr Index kRows = 9;
  std::vector<Index> rows;
  for (Index i = 0; i < kTerms; ++i) {
    rows.push_back(random.below(4) == 0 ? random.below(kRows - 1) : 5);
  }
  for_each_dtype([&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    for (const Index width : {1, 3, 33, 64}) {
      std::vector<T> values;
      for (Index i = 0; i < kTerms * width; ++i) {
        values.push_back(
            value_of<T>((random.uniform() - 0.5) * (random.below(4) == 0 ? 0x1p12 : 4.0)));
      }
      std::vector<Sum> sums(static_cast<std::size_t>(kRows * width), Sum{3});
      std::vector<Sum> expected = sums;
      for (Index i = 0; i < kTerms * width; ++i) {
        const Index row = rows[static_cast<std::size_t>(i / width)];
        expected[static_cast<std::size_t>(row * width + i % width)] +=
            ValueTraits<T>::widen(values[static_cast<std::size_t>(i)]);
      }
      std::vector<Sum> of_unaligned = sums;
      add_rows(context_, matrix_of(std::as_const(values), width), rows, sums_of<T>(sums, width));
      EXPECT_EQ(bits_of(sums), bits_of(expected)) << "width " << width;
      add_rows(context_, Unaligned<T>(values, width).matrix(), rows,
               sums_of<T>(of_unaligned, width));
      EXPECT_EQ(bits_of(of_unaligned), bits_of(expected)) << "width " << width;
    }
  });
}

TEST_F(Rows, AddAddsElements) {
  for_each_dtype([&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    std::vector<Sum> addends{1, 7, 0};
    std::vector<Sum> sums{2, 0, 1};
    const Matrix from = sums_of<T>(addends, 3);
    std::vector<std::byte> odd(static_cast<std::size_t>(from.bytes()) + 1);
    std::memcpy(odd.data() + 1, addends.data(), odd.size() - 1);
    add(context_, {odd.data() + 1, from.dtype, from.rows, from.width}, sums_of<T>(sums, 3));
    EXPECT_EQ(sums, (std::vector<Sum>{3, 7, 1}));
    add(context_, {nullptr, from.dtype, 1, 0}, {nullptr, from.dtype, 1, 0});
  });
  std::vector<float> addends{1, -0.0F, 0x1p-24F};
  std::vector<float> sums{2, 0, 1};
  add(context_, as_const(sums_of<float>(addends, 3)), sums_of<float>(sums, 3));
  EXPECT_EQ(bits_of(sums), bits_of(std::vector<float>{3, 0, 1}));
}

/// Returns the sum of `values`, computed by add_rows() into one row, as an element. The second
/// result is twice that sum, computed by add().
template <typename T>
std::pair<T, T> wrapped_sums(const Context& context, const std::vector<T>& values) {
  using Sum = typename ValueTraits<T>::Sum;
  std::vector<Sum> sums{0};
  const std::vector<Index> same(values.size(), 0);
  add_rows(context, matrix_of(values, 1), same, sums_of<T>(sums, 1));
  std::vector<Sum> twice = sums;
  add(context, as_const(sums_of<T>(sums, 1)), sums_of<T>(twice, 1));
  std::vector<T> out(2);
  const ConstMatrix once = as_const(sums_of<T>(sums, 1));
  round_sums(context, once, 1, {reinterpret_cast<std::byte*>(out.data()), once.dtype, 1, 1});
  round_sums(context, as_const(sums_of<T>(twice, 1)), 1,
             {reinterpret_cast<std::byte*>(&out[1]), once.dtype, 1, 1});
  return {out[0], out[1]};
}

TEST_F(Rows, IntegersWrap) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  using Pair = std::pair<std::int32_t, std::int32_t>;
  EXPECT_EQ(wrapped_sums<std::int32_t>(context_, {kMost, 1}), (Pair{kLeast, 0}));
  EXPECT_EQ(wrapped_sums<std::int32_t>(context_, {kLeast, -1}), (Pair{kMost, -2}));
  EXPECT_EQ(wrapped_sums<std::int32_t>(context_, {kLeast, kLeast}), (Pair{0, 0}));
  EXPECT_EQ(wrapped_sums<std::int32_t>(context_, {kMost, kMost, 5}), (Pair{3, 6}));
  EXPECT_EQ(wrapped_sums<std::int32_t>(context_, {-7, 3}), (Pair{-4, -8}));
  constexpr std::int64_t kMost64 = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast64 = std::numeric_limits<std::int64_t>::min();
  using Pair64 = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(wrapped_sums<std::int64_t>(context_, {kMost64, 1}), (Pair64{kLeast64, 0}));
  EXPECT_EQ(wrapped_sums<std::int64_t>(context_, {kMost64, kMost64, 5}), (Pair64{3, 6}));
  // Sums that a double cannot represent.
  EXPECT_EQ(wrapped_sums<std::int64_t>(context_, {std::int64_t{1} << 53, 1}),
            (Pair64{(std::int64_t{1} << 53) + 1, (std::int64_t{1} << 54) + 2}));
}

template <typename T>
void expect_scaled_once(const Context& context, Random& random) {
  using Sum = typename ValueTraits<T>::Sum;
  std::vector<Sum> sums{0,   static_cast<Sum>(-0.0), 1, 10, std::numeric_limits<Sum>::denorm_min(),
                        1000};
  for (int i = 0; i < 1000; ++i) sums.push_back(static_cast<Sum>((random.uniform() - 0.5) * 1e5));
  const auto count = static_cast<Index>(sums.size());
  for (const double scale : {1.0, 1.0 / 3, 0.5, 1.0 / 7}) {
    std::vector<T> out(sums.size());
    round_sums(context, as_const(sums_of<T>(sums, count)), scale, matrix_of(out, count));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const Sum product = sums[i] * static_cast<Sum>(scale);
      ASSERT_EQ(bits_of(std::vector{out[i]}), bits_of(std::vector{rounded<T>(product)}))
          << sums[i] << " · " << scale;
    }
    if constexpr (std::is_same_v<T, Sum>) {
      std::vector<T> place = sums;
      round_sums(context, as_const(matrix_of(place, count)), scale, matrix_of(place, count));
      EXPECT_EQ(bits_of(place), bits_of(out)) << "in place";
    }
  }
  constexpr Sum kInf = std::numeric_limits<Sum>::infinity();
  std::vector<Sum> special{kInf, -kInf, std::numeric_limits<Sum>::quiet_NaN()};
  for (const double scale : {1.0, 0.5}) {
    std::vector<T> out(3);
    round_sums(context, as_const(sums_of<T>(special, 3)), scale, matrix_of(out, 3));
    EXPECT_EQ(ValueTraits<T>::widen(out[0]), kInf);
    EXPECT_EQ(ValueTraits<T>::widen(out[1]), -kInf);
    EXPECT_TRUE(std::isnan(ValueTraits<T>::widen(out[2])));
  }
  round_sums(context, {nullptr, ValueTraits<T>::sum_dtype, 1, 0}, 1,
             {nullptr, ValueTraits<T>::dtype, 1, 0});
}

TEST_F(Rows, RoundSumsScalesOnceAndRoundsOnce) {
  Random random(testing::seed());
  for_each_float_dtype([&]<typename T>(T) { expect_scaled_once<T>(context_, random); });
}

TEST_F(Rows, RoundSumsWritesToAnyAddress) {
  for_each_dtype([&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    std::vector<Sum> sums{3, 100};
    std::vector<std::byte> out(2 * sizeof(T) + 1);
    round_sums(context_, as_const(sums_of<T>(sums, 2)), 1,
               {out.data() + 1, ValueTraits<T>::dtype, 1, 2});
    std::vector<T> written(2);
    std::memcpy(written.data(), out.data() + 1, 2 * sizeof(T));
    EXPECT_EQ(bits_of(written), bits_of(values_of<T>({3, 100})));
  });
}

TEST_F(Rows, CountNonFiniteChecksAllElements) {
  for_each_float_dtype([&]<typename T>(T) {
    const T bad[] = {value_of<T>(std::numeric_limits<double>::infinity()),
                     value_of<T>(-std::numeric_limits<double>::infinity()),
                     value_of<T>(std::numeric_limits<double>::quiet_NaN())};
    std::vector<T> values(3 * 4096 + 5, value_of<T>(1));
    std::vector<Index> found{-1};
    const auto count = [&] {
      count_non_finite(context_, Unaligned<T>(values, 1).matrix(), Count(found.data()));
      return found[0];
    };
    EXPECT_EQ(count(), 0);
    for (const std::size_t place : {std::size_t{0}, std::size_t{4096}, values.size() - 1}) {
      values[place] = bad[place % 3];
    }
    EXPECT_EQ(count(), 3);
    values.assign(values.size(), bad[2]);
    EXPECT_EQ(count(), std::ssize(values));
    values.clear();
    EXPECT_EQ(count(), 0);
  });
}

/// Returns integers in [-127, 127], which every element type can represent.
template <typename T>
std::vector<T> small_numbers(Index count) {
  std::vector<T> values;
  for (Index i = 0; i < count; ++i) {
    values.push_back(value_of<T>(static_cast<double>(i * 37 % 255 - 127)));
  }
  return values;
}

TEST_F(Rows, CastConvertsElementsAtAnyAddress) {
  for_each_float_dtype([&]<typename From>(From) {
    for_each_float_dtype([&]<typename To>(To) {
      for_each_extent(sizeof(From), [&](Index count, Index offset) {
        Displaced<From> from(small_numbers<From>(count), offset);
        Displaced<To> to(std::vector<To>(static_cast<std::size_t>(count)), offset);
        cast(context_, as_const(from.matrix()), to.matrix());
        synchronize(context_);
        ASSERT_EQ(bits_of(to.values()), bits_of(small_numbers<To>(count)));
      });
    });
  });
}

TEST_F(Rows, SumsOfElementsAtAnyAddress) {
  for_each_dtype([&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    for_each_extent(sizeof(T), [&](Index count, Index offset) {
      const std::vector<T> numbers = small_numbers<T>(count);
      Displaced<T> values(numbers, offset);
      std::vector<Sum> sums(numbers.size());
      const Matrix sums_row{reinterpret_cast<std::byte*>(sums.data()), ValueTraits<T>::sum_dtype, 1,
                            count};
      start_sums(context_, as_const(values.matrix()), sums_row);
      synchronize(context_);
      std::vector<Sum> expected;
      for (const T number : numbers) expected.push_back(ValueTraits<T>::widen(number));
      ASSERT_EQ(sums, expected);
      // The sums in memory are elements of their own dtype, which add() accepts, too.
      for_dtype(ValueTraits<T>::sum_dtype, [&]<typename S>(S) {
        Displaced<S> more(small_numbers<S>(count), offset);
        add(context_, as_const(more.matrix()), sums_row);
      });
      synchronize(context_);
      for (Sum& sum : expected) sum += sum;
      ASSERT_EQ(sums, expected);
      Displaced<T> rounded_to(std::vector<T>(numbers.size()), offset);
      round_sums(context_, as_const(sums_row), 1, rounded_to.matrix());
      synchronize(context_);
      std::vector<T> twice;
      for (const Sum sum : expected) twice.push_back(ValueTraits<T>::narrow(sum));
      ASSERT_EQ(bits_of(rounded_to.values()), bits_of(twice));
    });
  });
}

TEST_F(Rows, ShiftOfAnyCount) {
  for_each_extent(sizeof(Index), [&](Index count, Index offset) {
    if (offset == 1) return;
    Displaced<Index> from(small_numbers<Index>(count), offset);
    Displaced<Index> to(std::vector<Index>(static_cast<std::size_t>(count)), offset);
    shift(context_, from.span(), 1000, to.span());
    synchronize(context_);
    std::vector<Index> expected = small_numbers<Index>(count);
    for (Index& number : expected) number += 1000;
    ASSERT_EQ(to.values(), expected);
  });
}

TEST_F(Rows, CountNonFiniteAtAnyAddress) {
  for_each_float_dtype([&]<typename T>(T) {
    for_each_extent(sizeof(T), [&](Index count, Index offset) {
      std::vector<T> numbers = small_numbers<T>(count);
      Index expected = 0;
      for (std::size_t i = 0; i < numbers.size(); i += 11, ++expected) {
        numbers[i] = value_of<T>(std::numeric_limits<double>::infinity());
      }
      Displaced<T> values(numbers, offset);
      std::vector<Index> found{-1};
      count_non_finite(context_, as_const(values.matrix()), Count(found.data()));
      synchronize(context_);
      ASSERT_EQ(found[0], expected);
    });
  });
}

TEST_F(Rows, RequireViewsOfTheRightSize) {
  std::vector<float> two(2);
  std::vector<Index> one(1);
  EXPECT_THROW(gather_rows(context_, matrix_of(std::as_const(two), 1), one, 0, matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(scatter_rows(context_, matrix_of(std::as_const(two), 1), one, 0, matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(add_rows(context_, matrix_of(std::as_const(two), 1), one, matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(add_rows(context_, matrix_of(std::as_const(two), 2), one, matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(add(context_, matrix_of(std::as_const(two), 2), matrix_of(two, 1)), ContractError);
  EXPECT_THROW(start_sums(context_, matrix_of(std::as_const(two), 2), matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(shift(context_, {}, 1, one), ContractError);
  EXPECT_THROW(invert(context_, {}, one), ContractError);
}

TEST_F(Rows, RequireSumsOfTheRightDtype) {
  std::vector<float> f32(2);
  std::vector<double> f64(2);
  std::vector<f16> narrow(2);
  std::vector<std::int32_t> whole(2);
  const std::vector<Index> rows{0, 1};
  EXPECT_THROW(add_rows(context_, matrix_of(std::as_const(f32), 1), rows, matrix_of(f64, 1)),
               ContractError);
  EXPECT_THROW(add_rows(context_, matrix_of(std::as_const(narrow), 1), rows, matrix_of(narrow, 1)),
               ContractError);
  EXPECT_THROW(add(context_, matrix_of(std::as_const(f32), 1), matrix_of(f64, 1)), ContractError);
  EXPECT_THROW(start_sums(context_, matrix_of(std::as_const(f32), 1), matrix_of(f64, 1)),
               ContractError);
  EXPECT_THROW(add(context_, matrix_of(std::as_const(narrow), 1), matrix_of(narrow, 1)),
               ContractError);
  EXPECT_THROW(round_sums(context_, matrix_of(std::as_const(f64), 1), 1, matrix_of(f32, 1)),
               ContractError);
  EXPECT_THROW(round_sums(context_, matrix_of(std::as_const(f32), 2), 1, matrix_of(f32, 1)),
               ContractError);
  // A mean of integers has no meaning.
  EXPECT_THROW(round_sums(context_, matrix_of(std::as_const(whole), 1), 0.5, matrix_of(whole, 1)),
               ContractError);
}

}  // namespace
}  // namespace sparsesync
