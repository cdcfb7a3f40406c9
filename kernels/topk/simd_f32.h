// SIMD loops over many f32 values. The results have the same bits as scalar loops.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/views.h"
#include "kernels/topk/residual.h"

namespace sparsesync::cpu {

/// Extra capacity that find_large() needs after the positions that it finds.
inline constexpr Index kPlacesBehind = 8;

/// Finds the positions of the values whose magnitude is at least `least`, in increasing order.
/// There is no branch per value if few of them are found.
/// @param least   1 to 2^31 - 1
/// @param places  values.size() + kPlacesBehind elements; those after the result may be overwritten
/// @return number of positions
Index find_large(std::span<const float> values, std::uint32_t least,
                 std::span<std::uint32_t> places);

/// Sums the absolute values in the reduction order of reduction_order.h.
double sum_absolute(std::span<const float> values);

/// Runs detail::OwedElement::add() for each element, with its velocity.
/// @param gradient  the same number of elements as the residual, any alignment
/// @return number of elements that are not added
Index add_with_velocity(const std::byte* gradient, float factor, const Velocity& velocity,
                        std::span<float> residual);

}  // namespace sparsesync::cpu
