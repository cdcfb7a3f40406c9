// Sums of squares and absolute values, for gradient norms.
#pragma once

#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// Adds the squares of all elements to *sum. Squares are computed in f64 and added in the order of
/// kernels/topk/reduction_order.h. Does not synchronize the stream.
/// @param values  floating-point dtype, any alignment
/// @param sum     in the context's memory
void add_squares(const Context& context, ConstMatrix values, double* sum);
}  // namespace cpu

SPARSESYNC_OPERATION(add_squares);

namespace detail {
/// Checks the sizes for chunk_norms().
/// @throws ContractError
inline void expect_chunks(std::span<const float> values, Index chunk,
                          std::span<const double> norms) {
  SPARSESYNC_EXPECT(chunk, >=, Index{1});
  SPARSESYNC_EXPECT(std::ssize(norms), ==, ceil_div(std::ssize(values), chunk));
}
}  // namespace detail

namespace cpu {
/// Computes the L1 norm of each chunk: norms[i] is the sum of the absolute values of elements [i *
/// chunk, (i + 1) * chunk). The last chunk may be shorter. Sums are computed in f64, in the order
/// of kernels/topk/reduction_order.h. Does not synchronize the stream.
///
/// Source: Sun et al., "Optimizing network performance for distributed DNN training on GPU
/// clusters", 2019, section 4.
/// @param chunk  at least 1
/// @param norms  ceil(values.size() / chunk) elements, in the context's memory
/// @throws ContractError for other sizes
void chunk_norms(const Context& context, std::span<const float> values, Index chunk,
                 std::span<double> norms);
}  // namespace cpu

SPARSESYNC_OPERATION(chunk_norms);

}  // namespace sparsesync
