// Sums of squares: what a gradient's norm is made of.
#pragma once

#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/error.h"
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

namespace detail {
/// @throws ContractError
inline void expect_chunks(std::span<const float> values, Index chunk,
                          std::span<const double> norms) {
  SPARSESYNC_EXPECT(chunk, >=, Index{1});
  SPARSESYNC_EXPECT(std::ssize(norms), ==, ceil_div(std::ssize(values), chunk));
}
}  // namespace detail

namespace cpu {
/// norms[i] = the sum of the absolute values of elements [i * chunk, (i + 1) * chunk), of which the
/// last chunk may have fewer, made in f64 as kernels/topk/reduction_order.h says (Sun et al.,
/// "Optimizing network performance for distributed DNN training on GPU clusters", 2019, section 4).
/// Does not synchronize the stream.
/// @param chunk  at least 1
/// @param norms  ceil(values.size() / chunk) of them, in the context's memory
/// @throws ContractError if there are not
void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms);
}  // namespace cpu

SPARSESYNC_OPERATION(chunk_norms);

}  // namespace sparsesync
