// Casts between floating-point types, for values that are narrower on the wire than in the tensor.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace detail {
/// Rounds an f64 to odd. A number that f32 cannot represent becomes the neighbour whose last bit is
/// set. Rounding that to nearest, in a type with at least two bits fewer, gives the same result as
/// rounding the f64 directly. Proof: Boldo and Melquiond, "Emulation of FMA and Correctly Rounded
/// Sums: Proved Algorithms Using Rounding to Odd", 2008.
SPARSESYNC_HOST_DEVICE inline float rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || value != value) return nearest;
  const bool away_from_zero = value < 0 ? back < value : back > value;
  const std::uint32_t towards_zero = bits_of_float(nearest) - (away_from_zero ? 1U : 0U);
  return float_of_bits(towards_zero | 1U);
}

/// Converts an element with a single rounding.
template <typename To, typename From>
SPARSESYNC_HOST_DEVICE inline To converted(From value) {
  using Wide = typename ValueTraits<To>::Sum;
  if constexpr (std::is_same_v<From, double> && !std::is_same_v<To, Wide>) {
    return ValueTraits<To>::narrow(rounded_to_odd(value));
  } else {
    return ValueTraits<To>::narrow(static_cast<Wide>(ValueTraits<From>::widen(value)));
  }
}
}  // namespace detail

namespace cpu {
/// Converts each element, rounded once to nearest, ties to even. Numbers that overflow the type of
/// `to` become infinities. Does not synchronize the stream.
/// @param from  floating-point dtype, any alignment
/// @param to    floating-point dtype, any alignment; rows and width of `from`; does not overlap it
void cast(const Context& context, ConstMatrix from, Matrix to);

/// Counts the elements that are infinite or NaN. Does not synchronize the stream.
/// @param values  floating-point dtype, any alignment
void count_non_finite(const Context& context, ConstMatrix values, Count count);
}  // namespace cpu

SPARSESYNC_OPERATION(cast);
SPARSESYNC_OPERATION(count_non_finite);

}  // namespace sparsesync
