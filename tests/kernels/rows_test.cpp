// The operations that move and add rows.
#include "kernels/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Rows = OperationTest;

TEST_F(Rows, GatherTakesColumnsOfRows) {
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

TEST_F(Rows, ScatterPutsColumnsOfRowsAndLeavesTheOthers) {
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
      numbers.push_back(value_of<T>(static_cast<double>(random.below(256))));
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

TEST_F(Rows, AddRowsAddsInOrderWithRepeats) {
  for_each_dtype([&]<typename T>(T) {
    const std::vector<T> from = values_of<T>({1, 10, 2, 20, 4, 40});
    std::vector<float> sums{100, 200, 300, 400, 500, 600};
    const std::vector<Index> rows{2, 0, 2};
    add_rows(context_, Unaligned<T>(from, 2).matrix(), rows, sums.data());
    EXPECT_EQ(sums, (std::vector<float>{102, 220, 300, 400, 505, 650}));
    // 2^24 swallows each 1 alone, but not their sum.
    std::vector<float> sum{0};
    const std::vector<T> falling = values_of<T>({0x1p24, 1, 1});
    const std::vector<Index> same{0, 0, 0};
    add_rows(context_, matrix_of(falling, 1), same, sum.data());
    EXPECT_EQ(sum[0], 0x1p24F);
    sum[0] = 0;
    const std::vector<T> rising = values_of<T>({1, 1, 0x1p24});
    add_rows(context_, matrix_of(rising, 1), same, sum.data());
    EXPECT_EQ(sum[0], 0x1p24F + 2);
    add_rows(context_, ConstMatrix{nullptr, ValueTraits<T>::dtype, 0, 2}, {}, sums.data());
  });
}

TEST_F(Rows, AddAddsElements) {
  const std::vector<float> addends{1, -0.0F, 0x1p-24F};
  std::vector<float> sums{2, 0, 1};
  add(context_, addends, sums);
  EXPECT_EQ(bits_of(sums), bits_of(std::vector<float>{3, 0, 1}));
  add(context_, {}, {});
}

TEST_F(Rows, RoundSumsScalesOnceAndRoundsOnce) {
  Random random(testing::seed());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> sums{0,    -0.0F, 1,         10,
                          kInf, -kInf, 0x1p-149F, std::numeric_limits<float>::max()};
  for (int i = 0; i < 1000; ++i) sums.push_back(static_cast<float>((random.uniform() - 0.5) * 1e6));
  for (const float scale : {1.0F, 1.0F / 3, 0.5F, 1.0F / 7}) {
    std::vector<float> f32(sums.size());
    std::vector<bf16> half(sums.size());
    round_sums(context_, sums, scale, DType::f32, reinterpret_cast<std::byte*>(f32.data()));
    round_sums(context_, sums, scale, DType::bf16, reinterpret_cast<std::byte*>(half.data()));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float product = sums[i] * scale;
      ASSERT_EQ(bits_of(f32[i]), bits_of(product)) << sums[i] << " · " << scale;
      if (std::isinf(product)) {
        ASSERT_EQ(half[i].bits, bits_of(product) >> 16U);
      } else {
        ASSERT_EQ(half[i].bits, rounded_bf16(product).bits) << sums[i] << " · " << scale;
      }
    }
    // In place for f32.
    std::vector<float> place = sums;
    round_sums(context_, place, scale, DType::f32, reinterpret_cast<std::byte*>(place.data()));
    EXPECT_EQ(bits_of(place), bits_of(f32));
  }
  // A scale of 1 changes no bit; a NaN stays one.
  const std::vector<float> nan{kNan};
  std::vector<bf16> half(1);
  round_sums(context_, nan, 1, DType::bf16, reinterpret_cast<std::byte*>(half.data()));
  EXPECT_TRUE(std::isnan(ValueTraits<bf16>::widen(half[0])));
  round_sums(context_, {}, 1, DType::f32, nullptr);
}

TEST_F(Rows, RoundSumsWritesToAnyAddress) {
  const std::vector<float> sums{1.5F, -3};
  for_each_dtype([&]<typename T>(T) {
    std::vector<std::byte> out(2 * sizeof(T) + 1);
    round_sums(context_, sums, 2, ValueTraits<T>::dtype, out.data() + 1);
    std::vector<T> written(2);
    std::memcpy(written.data(), out.data() + 1, 2 * sizeof(T));
    EXPECT_EQ(bits_of(written), bits_of(values_of<T>({3, -6})));
  });
}

TEST_F(Rows, WantViewsThatFit) {
  std::vector<float> two(2);
  std::vector<Index> one(1);
  EXPECT_THROW(gather_rows(context_, matrix_of(std::as_const(two), 1), one, 0, matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(scatter_rows(context_, matrix_of(std::as_const(two), 1), one, 0, matrix_of(two, 1)),
               ContractError);
  EXPECT_THROW(add_rows(context_, matrix_of(std::as_const(two), 1), one, two.data()),
               ContractError);
  EXPECT_THROW(add(context_, std::span(two).first(1), two), ContractError);
  EXPECT_THROW(shift(context_, {}, 1, one), ContractError);
  EXPECT_THROW(invert(context_, {}, one), ContractError);
}

}  // namespace
}  // namespace sparsesync
