// Element types: the rounding of every number, their names, and the dispatch.
#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "tests/kernels/values.h"

namespace sparsesync {
namespace {

TEST(Bf16, RoundsEveryNumberToTheNearestAndTiesToEven) {
  for (std::uint32_t upper = 0; upper <= 0xFFFFU; ++upper) {
    for (const std::uint32_t lower :
         {0x0000U, 0x0001U, 0x1234U, 0x7FFFU, 0x8000U, 0x8001U, 0xCDEFU, 0xFFFFU}) {
      const auto number = std::bit_cast<float>(upper << 16U | lower);
      const bf16 rounded = ValueTraits<bf16>::narrow(number);
      if (std::isnan(number)) {
        ASSERT_TRUE(std::isnan(ValueTraits<bf16>::widen(rounded)))
            << std::hex << upper << ' ' << lower;
        ASSERT_EQ(rounded.bits & 0x8000U, upper & 0x8000U) << "the sign of a NaN";
      } else if (std::isinf(number)) {
        ASSERT_EQ(rounded.bits, upper);
      } else {
        ASSERT_EQ(rounded.bits, rounded_bf16(number).bits) << std::hex << upper << ' ' << lower;
      }
    }
  }
}

TEST(Bf16, RoundsTheseByHand) {
  const auto narrow = [](float number) { return ValueTraits<bf16>::narrow(number).bits; };
  EXPECT_EQ(narrow(0.0F), 0x0000);
  EXPECT_EQ(narrow(-0.0F), 0x8000);
  EXPECT_EQ(narrow(1.0F), 0x3F80);
  EXPECT_EQ(narrow(1.0F + 0x1p-8F), 0x3F80);             // a tie: down to the even one
  EXPECT_EQ(narrow(1.0F + 0x1p-7F + 0x1p-8F), 0x3F82);   // a tie: up to the even one
  EXPECT_EQ(narrow(1.0F + 0x1p-8F + 0x1p-23F), 0x3F81);  // just above a tie
  EXPECT_EQ(narrow(2.0F - 0x1p-23F), 0x4000);            // the carry goes to the exponent
  EXPECT_EQ(narrow(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(narrow(-std::numeric_limits<float>::max()), 0xFF80);
  EXPECT_EQ(narrow(0x1.FEp127F), 0x7F7F);      // the largest bf16
  EXPECT_EQ(narrow(0x1.FEFFFEp127F), 0x7F7F);  // just below the tie
  EXPECT_EQ(narrow(0x1p-149F), 0x0000);
  EXPECT_EQ(narrow(0x1p-133F), 0x0001);  // the smallest bf16
  EXPECT_EQ(narrow(0x1p-134F), 0x0000);  // half of it: a tie
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

TEST(Zero, IsBothZerosAndNothingElse) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const bool zero = bits == 0 || bits == 0x8000U;
    ASSERT_EQ(ValueTraits<bf16>::is_zero(bf16{static_cast<std::uint16_t>(bits)}), zero) << bits;
    ASSERT_EQ(ValueTraits<float>::is_zero(std::bit_cast<float>(bits << 16U)), zero) << bits;
  }
  EXPECT_FALSE(ValueTraits<float>::is_zero(0x1p-149F));
  EXPECT_FALSE(ValueTraits<float>::is_zero(-0x1p-149F));
}

TEST(F32, IsSummedAsItIs) {
  for (const float number :
       {0.0F, -0.0F, 1.5F, 0x1p-149F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(bits_of(ValueTraits<float>::widen(number)), bits_of(number));
    EXPECT_EQ(bits_of(ValueTraits<float>::narrow(number)), bits_of(number));
  }
}

TEST(DTypes, HaveSizesAndNames) {
  EXPECT_EQ(element_bytes(DType::f32), 4);
  EXPECT_EQ(element_bytes(DType::bf16), 2);
  EXPECT_EQ(name_of(DType::f32), "f32");
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
    EXPECT_EQ(for_dtype(dtype, []<typename T>(T) { return ValueTraits<T>::dtype; }), dtype);
    EXPECT_EQ(for_dtype(dtype, []<typename T>(T) { return static_cast<std::int64_t>(sizeof(T)); }),
              element_bytes(dtype));
  }
}

TEST(DTypes, AnUnknownNameIsToldTheKnownOnes) {
  for (const char* name : {"f64", "F32", "", "f32 ", "float"}) {
    try {
      dtype_named(name);
      FAIL() << "no error for '" << name << "'";
    } catch (const InputError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'" + std::string(name) + "'"), std::string::npos) << text;
      EXPECT_NE(text.find("f32"), std::string::npos) << text;
      EXPECT_NE(text.find("bf16"), std::string::npos) << text;
    }
  }
}

TEST(DTypes, DispatchReturnsWhatTheBodyReturns) {
  int number = 3;
  int& same = for_dtype(DType::bf16, [&](auto) -> int& { return number; });
  EXPECT_EQ(&same, &number);
  EXPECT_THROW(for_dtype(static_cast<DType>(99), [](auto) {}), ContractError);
}

}  // namespace
}  // namespace sparsesync
