// Passes over many f32 by SIMD, whose results have the bits of the same done one by one.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/views.h"
#include "kernels/topk/residual.h"

namespace sparsesync::cpu {

/// Room for places behind those that find_large() finds.
inline constexpr Index kPlacesBehind = 8;

/// The places of the values whose magnitude is at least `least`, increasing. Nothing branches on a
/// value where few of them are.
/// @param least   1 to 2^31 - 1
/// @param places  values.size() + kPlacesBehind of them; those behind the result are scribbled on
/// @return how many there are
Index find_large(std::span<const float> values, std::uint32_t least,
                 std::span<std::uint32_t> places);

/// Sums the absolute values in the reduction order of reduction_order.h.
double sum_absolute(std::span<const float> values);

/// detail::OwedElement::add() of each element with its velocity.
/// @param gradient  as many as the residual has, of any alignment
/// @return how many elements are not added
Index add_with_velocity(const std::byte* gradient, float factor, const Velocity& velocity,
                        std::span<float> residual);

}  // namespace sparsesync::cpu
