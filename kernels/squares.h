// Sums of squares: what a gradient's norm is made of.
#pragma once

#include "kernels/context.h"
#include "kernels/views.h"

namespace sparsesync {

/// The order that squares are added up in, so that the sum has the same bits on every device. Each
/// chunk of elements is a round of additions to kSquareLanes sums, element i of it to sum i mod
/// kSquareLanes, and the sums are added up in halves; the chunks' sums are added up as the elements
/// of one more chunk, however many they are.
inline constexpr Index kSquareLanes = 256;
inline constexpr Index kSquareChunk = 16 * kSquareLanes;

namespace cpu {
/// *sum += the squares of all elements, each made in f64. Does not synchronize the stream.
/// @param values  of a floating-point dtype and any alignment
/// @param sum     in the context's memory
void add_squares(const Context& context, ConstMatrix values, double* sum);
}  // namespace cpu

SPARSESYNC_OPERATION(add_squares);

}  // namespace sparsesync
