// Support for tests of operations: a context, values of every element type, and comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/views.h"
#include "tests/support/devices.h"

namespace sparsesync {

/// A fixture with a context of the device under test. Expects that all its memory is returned at
/// the end of each test.
class OperationTest : public ::testing::Test {
 protected:
  void TearDown() override {
    // Workspaces in the body of the test have been destroyed already.
    EXPECT_EQ(memory_.in_use(), 0);
  }

  testing::DeviceUnderTest device_;
  testing::TestMemory memory_;
  const Context context_ = device_.context(memory_);
};

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline std::uint64_t bits_of(double value) {
  return std::bit_cast<std::uint64_t>(value);
}

/// Rounds to nearest even by arithmetic. Serves as an oracle that shares no code with
/// ValueTraits<bf16>::narrow().
/// @param number  finite
inline bf16 rounded_bf16(float number) {
  const double value = number;
  // The two neighbours of a binary32 without its lower half. A double represents the distances to
  // them exactly.
  const auto upper = static_cast<std::uint16_t>(bits_of(static_cast<float>(value)) >> 16U);
  const auto at = [](std::uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U));
  };
  const double towards_zero = value - at(upper);
  const auto away = static_cast<std::uint16_t>(upper + 1U);
  // Above the largest number is infinity, as far away as the next number would be.
  const double step = at(upper) - at(static_cast<std::uint16_t>(upper - 1U));
  const double away_at = (away & 0x7FFFU) == 0x7F80U ? at(upper) + step : at(away);
  const double from_zero = away_at - value;
  const double near = towards_zero < 0 ? -towards_zero : towards_zero;
  const double far = from_zero < 0 ? -from_zero : from_zero;
  if (near == far) return bf16{(upper & 1U) == 0 ? upper : away};
  return bf16{near < far ? upper : away};
}

/// Rounds to f16 in the same way. Its numbers are multiples of a power of two that shrinks with the
/// exponent, down to 2^-24. From 2^16, the result is infinity.
inline f16 rounded_f16(float number) {
  const double value = std::abs(static_cast<double>(number));
  const int exponent = value == 0 ? -14 : std::clamp(std::ilogb(value), -14, 16);
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(value, 10 - exponent)));
  // `steps` is 1024 to 2048 for normal numbers; 2048 is the first number of the next exponent.
  const std::uint32_t magnitude =
      exponent > 15 ? 0x7C00U : static_cast<std::uint32_t>(exponent + 14) * 1024U + steps;
  return f16{static_cast<std::uint16_t>((std::signbit(number) ? 0x8000U : 0U) | magnitude)};
}

/// Rounds a finite sum to the element type with the oracles above.
template <typename T>
T rounded(typename ValueTraits<T>::Sum sum) {
  if constexpr (std::is_same_v<T, bf16>) {
    return rounded_bf16(sum);
  } else if constexpr (std::is_same_v<T, f16>) {
    return rounded_f16(sum);
  } else {
    return static_cast<T>(sum);
  }
}

/// Converts a number that T can represent: at most 8 significant bits for narrow types, an integer
/// for integer types.
template <typename T>
T value_of(double number) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bf16{static_cast<std::uint16_t>(bits_of(static_cast<float>(number)) >> 16U)};
  } else if constexpr (std::is_same_v<T, f16>) {
    return ValueTraits<f16>::narrow(static_cast<float>(number));
  } else {
    return static_cast<T>(number);
  }
}

template <typename T>
std::vector<T> values_of(const std::vector<double>& numbers) {
  std::vector<T> values;
  values.reserve(numbers.size());
  for (const double number : numbers) values.push_back(value_of<T>(number));
  return values;
}

/// Returns the bits of each element, because tests compare values by their bits.
template <typename T>
std::vector<std::uint64_t> bits_of(const std::vector<T>& values) {
  std::vector<std::uint64_t> bits;
  for (const T& value : values) {
    std::memcpy(&bits.emplace_back(0), &value, sizeof(T));
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

/// Values at an odd address, as in a message.
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

/// Values that start `offset` bytes after a multiple of 16, followed by guard bytes that must not
/// change.
template <typename T>
class Displaced {
 public:
  Displaced(const std::vector<T>& values, Index offset)
      : offset_(static_cast<std::size_t>(offset)),
        count_(values.size()),
        bytes_(offset_ + count_ * sizeof(T) + kGuard, kUntouched) {
    if (count_ != 0) std::memcpy(data(), values.data(), count_ * sizeof(T));
  }
  Matrix matrix() { return {data(), ValueTraits<T>::dtype, 1, static_cast<Index>(count_)}; }
  /// Returns the values in memory.
  /// @pre the offset is a multiple of the alignment of T
  std::span<T> span() { return {reinterpret_cast<T*>(data()), count_}; }
  std::vector<T> values() {
    EXPECT_TRUE(std::all_of(bytes_.end() - kGuard, bytes_.end(),
                            [](std::byte byte) { return byte == kUntouched; }));
    std::vector<T> copy(count_);
    if (count_ != 0) std::memcpy(copy.data(), data(), count_ * sizeof(T));
    return copy;
  }

 private:
  static constexpr std::byte kUntouched{0xA5};
  static constexpr int kGuard = 16;

  std::byte* data() { return bytes_.data() + offset_; }

  std::size_t offset_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

/// Calls body(count, offset) for counts around the sizes that threads and blocks of a GPU process
/// at once. Offsets give an aligned address, one aligned to elements only, and an odd one.
template <typename Body>
void for_each_extent(std::size_t element_bytes, Body&& body) {
  for (const Index count : {0, 1, 3, 17, 1023, 1024, 1025, 2047, 2048, 2053, 4096, 4099, 9001}) {
    for (const Index offset : {Index{0}, static_cast<Index>(element_bytes), Index{1}}) {
      SCOPED_TRACE(std::to_string(count) + " elements, offset " + std::to_string(offset));
      body(count, offset);
    }
  }
}

/// Returns sums of elements of type T as one matrix.
template <typename T>
Matrix sums_of(std::vector<typename ValueTraits<T>::Sum>& sums, Index width) {
  return {reinterpret_cast<std::byte*>(sums.data()), ValueTraits<T>::sum_dtype,
          static_cast<Index>(sums.size()) / width, width};
}

/// Calls `body` with a value of each element type.
template <typename Body>
void for_each_dtype(Body&& body) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(name_of(dtype));
    for_dtype(dtype, body);
  }
}

/// Calls `body` with a value of each floating-point element type.
template <typename Body>
void for_each_float_dtype(Body&& body) {
  for_each_dtype([&]<typename T>(T value) {
    if constexpr (!std::is_integral_v<T>) body(value);
  });
}

}  // namespace sparsesync
