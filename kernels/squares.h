// Sums of squares: what a gradient's norm is made of.
#pragma once

#include "kernels/context.h"
#include "kernels/lanes.h"
#include "kernels/views.h"

namespace sparsesync {

/// The squares of so many elements are added up by lanes, and these chunks' sums by lanes again.
inline constexpr Index kSquareChunk = 16 * kLanes;

namespace cpu {
/// *sum += the squares of all elements, each made in f64. Does not synchronize the stream.
/// @param values  of a floating-point dtype and any alignment
/// @param sum     in the context's memory
void add_squares(const Context& context, ConstMatrix values, double* sum);
}  // namespace cpu

SPARSESYNC_OPERATION(add_squares);

}  // namespace sparsesync
