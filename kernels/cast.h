// Casts between floating-point element types: values on the wire narrower than in the tensor.
#pragma once

#include "kernels/context.h"
#include "kernels/views.h"

namespace sparsesync {

namespace cpu {
/// to = from, element by element, rounded to nearest, ties to even; what is larger than `to` holds
/// becomes an infinity. An f64 goes to f16 and bf16 through f32: rounded twice. Does not
/// synchronize the stream.
/// @param from  of a floating-point dtype and any alignment
/// @param to    likewise; rows and width as `from`; does not overlap it
void cast(const Context& context, ConstMatrix from, Matrix to);

/// How many elements are infinite or not a number. Does not synchronize the stream.
/// @param values  of a floating-point dtype and any alignment
void count_non_finite(const Context& context, ConstMatrix values, Count count);
}  // namespace cpu

SPARSESYNC_OPERATION(cast);
SPARSESYNC_OPERATION(count_non_finite);

}  // namespace sparsesync
