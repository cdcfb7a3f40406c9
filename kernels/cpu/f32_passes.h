// Passes over many f32 by SIMD, whose results have the bits of the same done one by one.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/lanes.h"
#include "kernels/residual.h"
#include "kernels/views.h"

namespace sparsesync::cpu {

/// Bit i of `marks`, of word i / 64, tells whether the magnitude of values[i] is at least `least`.
/// @param least  2^31 at most
/// @param marks  of values.size() bits, rounded up to whole words; the bits behind are 0
void mark_large(std::span<const float> values, std::uint32_t least, std::span<std::uint64_t> marks);

/// lanes[i mod kLanes] += |values[i]|, in increasing i.
void add_absolute(std::span<const float> values, Lanes& lanes);

/// detail::OwedElement::add() of each element with its velocity.
/// @param gradient  as many as the residual has, of any alignment
/// @return how many elements are not added
Index add_with_velocity(const std::byte* gradient, float factor, const Velocity& velocity,
                        std::span<float> residual);

}  // namespace sparsesync::cpu
