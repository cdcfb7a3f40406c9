// Arithmetic of element types, shared by host and device.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/error.h"
#include "sparsesync/dtype.h"  // IWYU pragma: export

namespace sparsesync {

/// Describes the summation of an element type. Elements are added in type `Sum`, and the sum is
/// rounded once at the end. In memory a sum has dtype `sum_dtype`. Both widen() and narrow() are
/// exact for numbers that the other type can represent.
template <typename T>
struct ValueTraits;

namespace detail {
/// Names the dtype of an element type and the dtype of its sums in memory.
template <DType own, DType of_sum>
struct DTypes {
  static constexpr DType dtype = own;
  static constexpr DType sum_dtype = of_sum;
};

/// Sums a floating-point type in the type itself.
template <typename T, DType own>
struct OwnSum : DTypes<own, own> {
  using Sum = T;
  SPARSESYNC_HOST_DEVICE static constexpr Sum widen(T value) { return value; }
  SPARSESYNC_HOST_DEVICE static constexpr T narrow(Sum sum) { return sum; }
  SPARSESYNC_HOST_DEVICE static constexpr bool is_zero(T value) { return value == T{0}; }
};

/// Sums integers, which wrap. The sum type is unsigned, for which overflow is defined; the bits are
/// the same.
template <typename T, typename Unsigned, DType own>
struct WrappingSum : DTypes<own, own> {
  using Sum = Unsigned;
  SPARSESYNC_HOST_DEVICE static constexpr Sum widen(T value) { return static_cast<Sum>(value); }
  SPARSESYNC_HOST_DEVICE static constexpr T narrow(Sum sum) { return static_cast<T>(sum); }
  SPARSESYNC_HOST_DEVICE static constexpr bool is_zero(T value) { return value == 0; }
};
}  // namespace detail

/// Sums f32 in f32, with the arithmetic of C++.
template <>
struct ValueTraits<float> : detail::OwnSum<float, DType::f32> {
  static constexpr const char* name = "f32";
};

/// Sums f64 in f64, with the arithmetic of C++.
template <>
struct ValueTraits<double> : detail::OwnSum<double, DType::f64> {
  static constexpr const char* name = "f64";
};

/// Sums i32, which wraps on overflow.
template <>
struct ValueTraits<std::int32_t> : detail::WrappingSum<std::int32_t, std::uint32_t, DType::i32> {
  static constexpr const char* name = "i32";
};

/// Sums i64, which wraps on overflow.
template <>
struct ValueTraits<std::int64_t> : detail::WrappingSum<std::int64_t, std::uint64_t, DType::i64> {
  static constexpr const char* name = "i64";
};

namespace detail {
SPARSESYNC_HOST_DEVICE inline float float_of_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
SPARSESYNC_HOST_DEVICE inline std::uint32_t bits_of_float(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}
}  // namespace detail

/// Sums f16 in f32.
template <>
struct ValueTraits<f16> : detail::DTypes<DType::f16, DType::f32> {
  using Sum = float;
  static constexpr const char* name = "f16";

  SPARSESYNC_HOST_DEVICE static Sum widen(f16 value) {
    const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
    const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
    const std::uint32_t fraction = value.bits & 0x03FFU;
    if (exponent == 0) {  // zero and subnormals: multiples of 2^-24, all normal in f32
      const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
      return detail::float_of_bits(sign | detail::bits_of_float(magnitude));
    }
    const std::uint32_t rebiased = exponent == 0x1FU ? 0xFFU : exponent + (127U - 15U);
    return detail::float_of_bits(sign | rebiased << 23U | fraction << 13U);
  }

  /// Rounds to nearest, ties to even. Values of 65520 or more become infinity; a NaN becomes a
  /// quiet NaN.
  SPARSESYNC_HOST_DEVICE static f16 narrow(Sum sum) {
    const std::uint32_t bits = detail::bits_of_float(sum);
    const std::uint32_t sign = (bits >> 16U) & 0x8000U;
    return f16{static_cast<std::uint16_t>(sign | narrow_magnitude(bits & 0x7FFFFFFFU))};
  }
  SPARSESYNC_HOST_DEVICE static bool is_zero(f16 value) { return (value.bits & 0x7FFFU) == 0; }

 private:
  /// @param bits  a binary32 without its sign
  SPARSESYNC_HOST_DEVICE static std::uint32_t narrow_magnitude(std::uint32_t bits) {
    constexpr std::uint32_t kInfinity = 0x7F800000U;
    constexpr std::uint32_t k2Pow16 = 0x47800000U;
    constexpr std::uint32_t kSmallestNormal = 0x38800000U;  // 2^-14
    constexpr std::uint32_t kHalfOfSmallest = 0x33000000U;  // 2^-25: a tie, rounds to 0
    constexpr std::uint32_t kRebias = (127U - 15U) << 23U;
    if (bits > kInfinity) return 0x7E00U | ((bits >> 13U) & 0x03FFU);
    if (bits >= k2Pow16) return 0x7C00U;
    if (bits >= kSmallestNormal) {
      // A carry out of the fraction increments the exponent; beyond the largest number this gives
      // infinity.
      return (bits - kRebias + 0x0FFFU + ((bits >> 13U) & 1U)) >> 13U;
    }
    if (bits <= kHalfOfSmallest) return 0;
    // A subnormal: count the significand in units of 2^-24.
    const std::uint32_t significand = (bits & 0x007FFFFFU) | 0x00800000U;
    const std::uint32_t shift = 126U - (bits >> 23U);  // 14 to 24
    const std::uint32_t whole = significand >> shift;
    const std::uint32_t rest = significand & ((1U << shift) - 1U);
    const std::uint32_t half = 1U << (shift - 1U);
    return whole + (rest > half || (rest == half && (whole & 1U) != 0) ? 1U : 0U);
  }
};

/// Sums bf16 in f32.
template <>
struct ValueTraits<bf16> : detail::DTypes<DType::bf16, DType::f32> {
  using Sum = float;
  static constexpr const char* name = "bf16";

  SPARSESYNC_HOST_DEVICE static Sum widen(bf16 value) {
    return detail::float_of_bits(static_cast<std::uint32_t>(value.bits) << 16U);
  }
  /// Rounds to nearest, ties to even. A NaN becomes a quiet NaN.
  SPARSESYNC_HOST_DEVICE static bf16 narrow(Sum sum) {
    const std::uint32_t bits = detail::bits_of_float(sum);
    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
      return bf16{static_cast<std::uint16_t>((bits >> 16U) | 0x0040U)};
    }
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
    return bf16{static_cast<std::uint16_t>(rounded >> 16U)};
  }
  SPARSESYNC_HOST_DEVICE static bool is_zero(bf16 value) { return (value.bits & 0x7FFFU) == 0; }
};

/// Calls `body` with a value of the C++ type of `dtype`. Only the type of the value matters.
/// @throws ContractError if `dtype` is not a known dtype
template <typename Body>
decltype(auto) for_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return std::forward<Body>(body)(float{});
    case DType::f64:
      return std::forward<Body>(body)(double{});
    case DType::f16:
      return std::forward<Body>(body)(f16{});
    case DType::bf16:
      return std::forward<Body>(body)(bf16{});
    case DType::i32:
      return std::forward<Body>(body)(std::int32_t{});
    case DType::i64:
      return std::forward<Body>(body)(std::int64_t{});
  }
  throw ContractError("unknown dtype");
}

/// Does the same as for_dtype() for a floating-point dtype.
/// @throws ContractError if `dtype` is an integer type
template <typename Body>
void for_float_dtype(DType dtype, Body&& body) {
  for_dtype(dtype, [&]<typename T>(T value) {
    if constexpr (std::is_integral_v<T>) {
      throw ContractError("expected a floating-point dtype, got an integer dtype");
    } else {
      body(value);
    }
  });
}

/// Returns the dtype in which elements of `dtype` are summed: f32 for f16 and bf16, otherwise
/// `dtype`.
inline DType sum_dtype(DType dtype) {
  return for_dtype(dtype, []<typename T>(T) { return ValueTraits<T>::sum_dtype; });
}

/// Returns whether `dtype` is an integer type. Its sums wrap, and a mean has no meaning.
inline bool is_integer(DType dtype) {
  return for_dtype(dtype, []<typename T>(T) { return std::is_integral_v<T>; });
}

}  // namespace sparsesync
