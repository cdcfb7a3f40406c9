// ctest: DEVICES
// Casts: each conversion rounds once.
#include "kernels/rows/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kernels/values.h"

namespace sparsesync {
namespace {

using Casts = OperationTest;

/// Adds numbers at, just below and just above the midpoint of two neighbouring numbers of type T.
/// Also adds the bits that each rounds to by the definition: the nearer number, or for a tie the
/// one whose last bit is 0.
template <typename T>
void add_neighbourhood(std::uint16_t lower, double from, double to, std::vector<double>& numbers,
                       std::vector<T>& expected) {
  const auto upper = static_cast<std::uint16_t>(lower + 1U);
  const std::uint16_t even = (lower & 1U) == 0 ? lower : upper;
  const double middle = from + (to - from) / 2;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto add = [&](double number, std::uint16_t bits) {
    numbers.insert(numbers.end(), {number, -number});
    expected.insert(expected.end(), {T{bits}, T{static_cast<std::uint16_t>(bits | 0x8000U)}});
  };
  add(from, lower);
  add(middle, even);
  add(std::nextafter(middle, 0.0), lower);
  add(std::nextafter(middle, kInfinity), upper);
  // Distances that an f32 can represent, and distances that are too small for it.
  for (const double part : {0x1p-3, 0x1p-12, 0x1p-15, 0x1p-20, 0x1p-35}) {
    add(middle - (to - from) * part, lower);
    add(middle + (to - from) * part, upper);
  }
}

/// @param infinity  bits of infinity in type T
template <typename T>
void expect_one_rounding(const Context& context, std::uint16_t infinity) {
  std::vector<double> numbers;
  std::vector<T> expected;
  const auto number_of = [](std::uint16_t bits) {
    return static_cast<double>(ValueTraits<T>::widen(T{bits}));
  };
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1U);
    // Rounding treats infinity like the power of two that follows the largest number.
    const double last_step = number_of(bits) - number_of(static_cast<std::uint16_t>(bits - 1U));
    const double to = next == infinity ? number_of(bits) + last_step : number_of(next);
    add_neighbourhood(bits, number_of(bits), to, numbers, expected);
  }
  std::vector<T> out(numbers.size());
  cast(context, matrix_of(std::as_const(numbers), 1), matrix_of(out, 1));
  synchronize(context);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_EQ(out[i].bits, expected[i].bits) << std::hexfloat << numbers[i];
  }
}

TEST_F(Casts, RoundEachF64OnceToF16) {
  expect_one_rounding<f16>(context_, 0x7C00U);
}

TEST_F(Casts, RoundEachF64OnceToBf16) {
  expect_one_rounding<bf16>(context_, 0x7F80U);
}

TEST_F(Casts, KeepInfinitiesAndNan) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kMost = std::numeric_limits<double>::max();
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const std::vector<double> numbers{
      kInfinity, -kInfinity, kMost, -kMost,
      kLeast,    -kLeast,    -0.0,  std::numeric_limits<double>::quiet_NaN()};
  const std::vector<std::uint32_t> expected{0x7C00, 0xFC00, 0x7C00, 0xFC00, 0, 0x8000, 0x8000};
  std::vector<f16> out(numbers.size());
  cast(context_, matrix_of(numbers, 1), matrix_of(out, 1));
  synchronize(context_);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(out[i].bits, expected[i]) << i;
  EXPECT_TRUE(std::isnan(ValueTraits<f16>::widen(out.back())));
}

TEST_F(Casts, CountNonFiniteResults) {
  const std::vector<double> numbers{1e300, HUGE_VAL, -HUGE_VAL, std::nan(""), 0};
  const auto found = std::make_unique<Index>(-1);
  count_non_finite(context_, matrix_of(numbers, 1), Count(found.get()));
  synchronize(context_);
  EXPECT_EQ(*found, 3);
}

}  // namespace
}  // namespace sparsesync
