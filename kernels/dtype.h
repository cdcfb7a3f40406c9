// Element types of values: their sizes, names, and arithmetic. Host and device share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/error.h"
#include "kernels/host_device.h"

namespace sparsesync {

enum class DType : std::uint8_t { f32, bf16 };

/// bfloat16 as its bits: the upper half of an IEEE-754 binary32.
struct bf16 {
  std::uint16_t bits = 0;
};

/// How an element type is summed: in `Sum`, rounded once at the end (design: "Bits").
template <typename T>
struct ValueTraits;

template <>
struct ValueTraits<float> {
  using Sum = float;
  static constexpr DType dtype = DType::f32;
  SPARSESYNC_HOST_DEVICE static Sum widen(float value) { return value; }
  SPARSESYNC_HOST_DEVICE static float narrow(Sum sum) { return sum; }
  SPARSESYNC_HOST_DEVICE static bool is_zero(float value) { return value == 0.0F; }
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

template <>
struct ValueTraits<bf16> {
  using Sum = float;
  static constexpr DType dtype = DType::bf16;
  SPARSESYNC_HOST_DEVICE static Sum widen(bf16 value) {
    return detail::float_of_bits(static_cast<std::uint32_t>(value.bits) << 16U);
  }
  /// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
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

/// Bytes of one element.
inline std::int64_t element_bytes(DType dtype) {
  return dtype == DType::f32 ? std::int64_t{4} : std::int64_t{2};
}

/// The name in options, JSON and messages: "f32", "bf16".
std::string_view name_of(DType dtype);

/// @throws InputError if no type has that name; the text lists those that exist
DType dtype_named(std::string_view name);

/// Calls `body` with a value of the C++ type of `dtype` (only its type matters).
template <typename Body>
decltype(auto) for_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return std::forward<Body>(body)(float{});
    case DType::bf16:
      return std::forward<Body>(body)(bf16{});
  }
  throw ContractError("a dtype that does not exist");
}

}  // namespace sparsesync
