// take_largest() in several launches. For its source and its test alone.
#pragma once

#include <span>

#include "kernels/topk/topk.h"

namespace sparsesync::cuda {

/// Elements that one launch examines: a word of the kernel holds two counts of them.
inline constexpr Index kMostTakenAtOnce = Index{1} << 30;

/// Does the work of take_largest() in launches of at most `most` elements. Does not synchronize the
/// stream.
/// @param most  at most kMostTakenAtOnce
void take_largest_in_parts(const Context& context, std::span<float> residual,
                           std::span<float> velocity, const MagnitudeCut* cut, const Taken& taken,
                           Count count, Count not_finite, Index most);

}  // namespace sparsesync::cuda
