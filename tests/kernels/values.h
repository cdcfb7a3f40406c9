// What the tests of operations share: a context, values of every element type, and comparison by
// bits.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/memory.h"
#include "kernels/context.h"
#include "kernels/dtype.h"
#include "kernels/views.h"

namespace sparsesync {

/// A context whose memory is given back in full at the end of each test.
class OperationTest : public ::testing::Test {
 protected:
  void TearDown() override {
    // Workspaces of the test's own body are gone by now.
    EXPECT_EQ(memory_.in_use(), 0);
  }

  HostMemory memory_;
  const Context context_{memory_};
};

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// Rounded to nearest even by arithmetic alone: an oracle that shares no text with
/// ValueTraits<bf16>::narrow().
/// @param number  finite
inline bf16 rounded_bf16(float number) {
  const double value = number;
  // The two neighbours of a binary32 that has lost its lower half; double holds their distances
  // exactly.
  const auto upper = static_cast<std::uint16_t>(bits_of(static_cast<float>(value)) >> 16U);
  const auto at = [](std::uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U));
  };
  const double towards_zero = value - at(upper);
  const auto away = static_cast<std::uint16_t>(upper + 1U);
  // Beyond the largest number stands the infinity, as far away as the next number would be.
  const double step = at(upper) - at(static_cast<std::uint16_t>(upper - 1U));
  const double away_at = (away & 0x7FFFU) == 0x7F80U ? at(upper) + step : at(away);
  const double from_zero = away_at - value;
  const double near = towards_zero < 0 ? -towards_zero : towards_zero;
  const double far = from_zero < 0 ? -from_zero : from_zero;
  if (near == far) return bf16{(upper & 1U) == 0 ? upper : away};
  return bf16{near < far ? upper : away};
}

template <typename T>
T value_of(double number);
template <>
inline float value_of<float>(double number) {
  return static_cast<float>(number);
}
/// Numbers of at most 8 significant bits, which bf16 holds exactly.
template <>
inline bf16 value_of<bf16>(double number) {
  return bf16{static_cast<std::uint16_t>(bits_of(static_cast<float>(number)) >> 16U)};
}

template <typename T>
std::vector<T> values_of(const std::vector<double>& numbers) {
  std::vector<T> values;
  values.reserve(numbers.size());
  for (const double number : numbers) values.push_back(value_of<T>(number));
  return values;
}

/// Bits of each element: what "equal" means for values.
template <typename T>
std::vector<std::uint32_t> bits_of(const std::vector<T>& values) {
  std::vector<std::uint32_t> bits;
  for (const T& value : values) {
    if constexpr (sizeof(T) == 2) {
      bits.push_back(value.bits);
    } else {
      bits.push_back(bits_of(value));
    }
  }
  return bits;
}

template <typename T>
Matrix matrix_of(std::vector<T>& values, Index width) {
  return {reinterpret_cast<std::byte*>(values.data()), ValueTraits<T>::dtype,
          static_cast<Index>(values.size()) / width, width};
}

template <typename T>
ConstMatrix matrix_of(const std::vector<T>& values, Index width) {
  return {reinterpret_cast<const std::byte*>(values.data()), ValueTraits<T>::dtype,
          static_cast<Index>(values.size()) / width, width};
}

/// The same values at an odd address, as a message may hold them.
template <typename T>
class Unaligned {
 public:
  Unaligned(const std::vector<T>& values, Index width)
      : bytes_(values.size() * sizeof(T) + 1), matrix_(matrix_of(values, width)) {
    if (!values.empty()) std::memcpy(bytes_.data() + 1, values.data(), values.size() * sizeof(T));
  }
  ConstMatrix matrix() const {
    return {bytes_.data() + 1, matrix_.dtype, matrix_.rows, matrix_.width};
  }

 private:
  std::vector<std::byte> bytes_;
  ConstMatrix matrix_;
};

/// Runs `body` with a value of each element type.
template <typename Body>
void for_each_dtype(Body&& body) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    for_dtype(dtype, body);
  }
}

}  // namespace sparsesync
