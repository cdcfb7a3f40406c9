// Sums of squares: what a gradient's norm is made of.
#pragma once

#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// *sum += the squares of all elements, each made in f64, added up as
/// kernels/topk/reduction_order.h says. Does not synchronize the stream.
/// @param values  of a floating-point dtype and any alignment
/// @param sum     in the context's memory
void add_squares(const Context& context, ConstMatrix values, double* sum);
}  // namespace cpu

SPARSESYNC_OPERATION(add_squares);

}  // namespace sparsesync
