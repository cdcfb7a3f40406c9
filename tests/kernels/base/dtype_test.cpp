// Element types: the rounding of every number, their names, and the dispatch.
#include "kernels/base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/values.h"

namespace sparsesync {
namespace {

TEST(Bf16, RoundsEveryNumberToNearestAndTiesToEven) {
  for (std::uint32_t upper = 0; upper <= 0xFFFFU; ++upper) {
    for (const std::uint32_t lower :
         {0x0000U, 0x0001U, 0x1234U, 0x7FFFU, 0x8000U, 0x8001U, 0xCDEFU, 0xFFFFU}) {
      const auto number = std::bit_cast<float>(upper << 16U | lower);
      const bf16 rounded = ValueTraits<bf16>::narrow(number);
      if (std::isnan(number)) {
        ASSERT_TRUE(std::isnan(ValueTraits<bf16>::widen(rounded)))
            << std::hex << upper << ' ' << lower;
        ASSERT_EQ(rounded.bits & 0x8000U, upper & 0x8000U) << "sign of a NaN";
      } else if (std::isinf(number)) {
        ASSERT_EQ(rounded.bits, upper);
      } else {
        ASSERT_EQ(rounded.bits, rounded_bf16(number).bits) << std::hex << upper << ' ' << lower;
      }
    }
  }
}

TEST(Bf16, RoundsTheseExamples) {
  const auto narrow = [](float number) { return ValueTraits<bf16>::narrow(number).bits; };
  EXPECT_EQ(narrow(0.0F), 0x0000);
  EXPECT_EQ(narrow(-0.0F), 0x8000);
  EXPECT_EQ(narrow(1.0F), 0x3F80);
  EXPECT_EQ(narrow(1.0F + 0x1p-8F), 0x3F80);             // a tie: down to the even one
  EXPECT_EQ(narrow(1.0F + 0x1p-7F + 0x1p-8F), 0x3F82);   // a tie: up to the even one
  EXPECT_EQ(narrow(1.0F + 0x1p-8F + 0x1p-23F), 0x3F81);  // just above a tie
  EXPECT_EQ(narrow(2.0F - 0x1p-23F), 0x4000);            // the carry increments the exponent
  EXPECT_EQ(narrow(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(narrow(-std::numeric_limits<float>::max()), 0xFF80);
  EXPECT_EQ(narrow(0x1.FEp127F), 0x7F7F);      // the largest bf16
  EXPECT_EQ(narrow(0x1.FEFFFEp127F), 0x7F7F);  // just below the tie
  EXPECT_EQ(narrow(0x1p-149F), 0x0000);
  EXPECT_EQ(narrow(0x1p-133F), 0x0001);  // the smallest bf16
  EXPECT_EQ(narrow(0x1p-134F), 0x0000);  // half of the smallest: a tie
}

TEST(Bf16, WidensExactly) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const bf16 value{static_cast<std::uint16_t>(bits)};
    const float wide = ValueTraits<bf16>::widen(value);
    ASSERT_EQ(bits_of(wide), bits << 16U);
    if (!std::isnan(wide)) {
      ASSERT_EQ(ValueTraits<bf16>::narrow(wide).bits, bits);
    }
  }
}

/// Computes the value of an f16 from its bits, by the definition of the format.
double f16_number(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10U) & 0x1FU);
  const auto fraction = static_cast<double>(bits & 0x3FFU);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

TEST(F16, WidensAndNarrowsBackExactly) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const f16 value{static_cast<std::uint16_t>(bits)};
    const float wide = ValueTraits<f16>::widen(value);
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000U) != 0) << std::hex << bits;
    if ((bits & 0x7C00U) != 0x7C00U) {
      ASSERT_EQ(static_cast<double>(wide), f16_number(bits)) << std::hex << bits;
    } else if ((bits & 0x03FFU) == 0) {
      ASSERT_TRUE(std::isinf(wide)) << std::hex << bits;
    } else {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
    }
#ifdef __FLT16_MANT_DIG__
    if (!std::isnan(wide)) {
      const auto compilers = static_cast<float>(std::bit_cast<_Float16>(value.bits));
      ASSERT_EQ(bits_of(wide), bits_of(compilers)) << std::hex << bits;
    }
#endif
    const f16 back = ValueTraits<f16>::narrow(wide);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(ValueTraits<f16>::widen(back))) << std::hex << bits;
      ASSERT_EQ(back.bits & 0x8000U, bits & 0x8000U) << "sign of a NaN";
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

void expect_rounded_f16(float number) {
  const f16 rounded = ValueTraits<f16>::narrow(number);
  ASSERT_EQ(rounded.bits, rounded_f16(number).bits) << std::hexfloat << number;
#ifdef __FLT16_MANT_DIG__
  const auto compilers = std::bit_cast<std::uint16_t>(static_cast<_Float16>(number));
  ASSERT_EQ(rounded.bits, compilers) << std::hexfloat << number;
#endif
}

// Tests each number, the tie above it, and the nearest numbers on both sides of both.
TEST(F16, RoundsEveryNumberToNearestAndTiesToEven) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
    const double here = f16_number(bits);
    const double next = f16_number(bits + 1);  // 65536 after the largest f16
    for (const double at : {here, (here + next) / 2}) {
      const auto number = static_cast<float>(at);
      ASSERT_EQ(static_cast<double>(number), at);
      for (const float near :
           {number, std::nextafter(number, kInf), std::nextafter(number, -kInf)}) {
        expect_rounded_f16(near);
        expect_rounded_f16(-near);
      }
    }
  }
}

TEST(F16, RoundsNumbersOfAllSizes) {
  for (std::uint32_t upper = 0; upper <= 0xFFFFU; ++upper) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x1FFFU, 0x2000U, 0xFFFFU}) {
      const auto number = std::bit_cast<float>(upper << 16U | lower);
      if (std::isfinite(number)) expect_rounded_f16(number);
    }
  }
}

TEST(F16, RoundsTheseExamples) {
  const auto narrow = [](float number) { return ValueTraits<f16>::narrow(number).bits; };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(narrow(0.0F), 0x0000);
  EXPECT_EQ(narrow(-0.0F), 0x8000);
  EXPECT_EQ(narrow(1.0F), 0x3C00);
  EXPECT_EQ(narrow(-2.0F), 0xC000);
  EXPECT_EQ(narrow(1.0F + 0x1p-11F), 0x3C00);             // a tie: down to the even one
  EXPECT_EQ(narrow(1.0F + 0x1p-10F + 0x1p-11F), 0x3C02);  // a tie: up to the even one
  EXPECT_EQ(narrow(1.0F + 0x1p-11F + 0x1p-23F), 0x3C01);  // just above a tie
  EXPECT_EQ(narrow(65504.0F), 0x7BFF);                    // the largest f16
  EXPECT_EQ(narrow(65519.996F), 0x7BFF);
  EXPECT_EQ(narrow(65520.0F), 0x7C00);  // the tie between the largest f16 and 2^16
  EXPECT_EQ(narrow(kInf), 0x7C00);
  EXPECT_EQ(narrow(-kInf), 0xFC00);
  EXPECT_EQ(narrow(std::numeric_limits<float>::max()), 0x7C00);
  EXPECT_EQ(narrow(0x1p-14F), 0x0400);  // the smallest normal f16
  EXPECT_EQ(narrow(0x1p-24F), 0x0001);  // the smallest subnormal f16
  EXPECT_EQ(narrow(0x1p-25F), 0x0000);  // half of the smallest subnormal: a tie
  EXPECT_EQ(narrow(0x1.000002p-25F), 0x0001);
  EXPECT_EQ(narrow(0x1.8p-24F), 0x0002);       // a tie between 1 and 2 times 2^-24
  EXPECT_EQ(narrow(0x1.FFFFFEp-15F), 0x0400);  // the carry makes the result normal
  EXPECT_EQ(narrow(0x1p-149F), 0x0000);
}

TEST(Zero, IncludesBothZerosAndNothingElse) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const bool zero = bits == 0 || bits == 0x8000U;
    const auto half = static_cast<std::uint16_t>(bits);
    ASSERT_EQ(ValueTraits<bf16>::is_zero(bf16{half}), zero) << bits;
    ASSERT_EQ(ValueTraits<f16>::is_zero(f16{half}), zero) << bits;
    ASSERT_EQ(ValueTraits<float>::is_zero(std::bit_cast<float>(bits << 16U)), zero) << bits;
    const auto wide = static_cast<std::uint64_t>(bits) << 48U;
    ASSERT_EQ(ValueTraits<double>::is_zero(std::bit_cast<double>(wide)), zero) << bits;
  }
  EXPECT_FALSE(ValueTraits<float>::is_zero(0x1p-149F));
  EXPECT_FALSE(ValueTraits<float>::is_zero(-0x1p-149F));
  EXPECT_FALSE(ValueTraits<double>::is_zero(-0x1p-1074));
  EXPECT_TRUE(ValueTraits<std::int32_t>::is_zero(0));
  EXPECT_FALSE(ValueTraits<std::int32_t>::is_zero(std::numeric_limits<std::int32_t>::min()));
  EXPECT_FALSE(ValueTraits<std::int64_t>::is_zero(std::int64_t{1} << 32));
}

TEST(Integers, WrapInSums) {
  const auto sum = []<typename T>(T a, T b) {
    using Traits = ValueTraits<T>;
    return Traits::narrow(Traits::widen(a) + Traits::widen(b));
  };
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(sum(kMost, 1), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(sum(-5, 3), -2);
  EXPECT_EQ(sum(std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}),
            std::numeric_limits<std::int64_t>::max());
}

TEST(F32, IsSummedWithoutConversion) {
  for (const float number :
       {0.0F, -0.0F, 1.5F, 0x1p-149F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(bits_of(ValueTraits<float>::widen(number)), bits_of(number));
    EXPECT_EQ(bits_of(ValueTraits<float>::narrow(number)), bits_of(number));
  }
}

TEST(DTypes, HaveSizesAndNames) {
  struct Known {
    DType dtype;
    std::int64_t bytes;
    const char* name;
    DType sum;
    bool integer;
  };
  const std::vector<Known> all{
      {DType::f32, 4, "f32", DType::f32, false}, {DType::f64, 8, "f64", DType::f64, false},
      {DType::f16, 2, "f16", DType::f32, false}, {DType::bf16, 2, "bf16", DType::f32, false},
      {DType::i32, 4, "i32", DType::i32, true},  {DType::i64, 8, "i64", DType::i64, true}};
  EXPECT_EQ(kDTypes.size(), all.size());
  for (const Known& known : all) {
    EXPECT_EQ(std::count(kDTypes.begin(), kDTypes.end(), known.dtype), 1);
    EXPECT_EQ(element_bytes(known.dtype), known.bytes);
    EXPECT_EQ(name_of(known.dtype), known.name);
    EXPECT_EQ(dtype_named(known.name), known.dtype);
    EXPECT_EQ(sum_dtype(known.dtype), known.sum);
    EXPECT_EQ(sum_dtype(known.sum), known.sum);
    EXPECT_EQ(is_integer(known.dtype), known.integer);
    for_dtype(known.dtype, [&]<typename T>(T) {
      EXPECT_EQ(ValueTraits<T>::dtype, known.dtype);
      EXPECT_EQ(static_cast<std::int64_t>(sizeof(T)), known.bytes);
      EXPECT_EQ(static_cast<std::int64_t>(sizeof(typename ValueTraits<T>::Sum)),
                element_bytes(known.sum));
    });
  }
  EXPECT_EQ(dtype_names("|"), "f32|f64|f16|bf16|i32|i64");
}

TEST(DTypes, TheErrorOfAnUnknownNameListsTheKnownNames) {
  for (const char* name : {"f8", "F32", "", "f32 ", "float"}) {
    try {
      dtype_named(name);
      FAIL() << "no error for '" << name << "'";
    } catch (const InputError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'" + std::string(name) + "'"), std::string::npos) << text;
      EXPECT_NE(text.find("f32, f64, f16, bf16, i32, i64"), std::string::npos) << text;
    }
  }
}

TEST(DTypes, DispatchReturnsTheResultOfTheBody) {
  int number = 3;
  int& same = for_dtype(DType::bf16, [&](auto) -> int& { return number; });
  EXPECT_EQ(&same, &number);
  EXPECT_THROW(for_dtype(static_cast<DType>(99), [](auto) {}), ContractError);
}

}  // namespace
}  // namespace sparsesync
