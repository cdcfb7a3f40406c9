// Top-k selection: extracts the elements with the largest magnitudes, with a threshold.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Returns the bits of an f32 without the sign. They have the order of the absolute values; NaNs
/// are above infinity.
SPARSESYNC_HOST_DEVICE inline std::uint32_t magnitude_of(float value) {
  return detail::bits_of_float(value) & 0x7FFFFFFFU;
}

/// A magnitude threshold. Zeros are never selected.
struct MagnitudeCut {
  std::uint32_t level = 0;  // elements above this magnitude are selected
  Index ties = 0;           // number of selected elements on the level; the first ones
};

/// Output of the selection. Each array has one element per selected element, or none.
struct Taken {
  std::span<Index> indices;     // indices of the elements, increasing
  Matrix values;                // rounded to f32, f16 or bf16; [indices.size(), 1]
  std::span<float> velocities;  // empty: no velocities, or velocities stay unchanged
};

/// Scratch memory of find_cut(), which only grows.
struct CutWorkspace {
  explicit CutWorkspace(const Context& context) : near(context) {}
  Buffer<std::uint32_t> near;  // magnitudes of the elements that the sample does not decide
};

namespace detail {
/// Sample size of find_cut(), for large inputs.
inline constexpr Index kCutSample = 4096;

/// Returns the position of the i-th element of the sample: a random position in the i-th of
/// kCutSample equal parts.
SPARSESYNC_HOST_DEVICE inline Index sampled_place(Index i, Index size) {
  const Index begin = i * size / kCutSample;
  const Index end = (i + 1) * size / kCutSample;
  const auto offset =
      mix64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(end - begin);
  return begin + static_cast<Index>(offset);
}

/// Ranks in the decreasing sample that bound the threshold: three standard deviations around its
/// expected rank. They may be outside the sample.
struct SampleRanks {
  Index high = 0;
  Index low = 0;
};
inline SampleRanks sample_ranks(Index k, Index size) {
  const double share = static_cast<double>(k) / static_cast<double>(size);
  const double mean = share * static_cast<double>(kCutSample);
  const double far = 3 * std::sqrt(mean * (1 - share)) + 2;
  return {static_cast<Index>(std::floor(mean - far)), static_cast<Index>(std::ceil(mean + far))};
}
/// Returns whether there are enough elements for a sample.
inline bool is_sampled(Index size) {
  return size >= 4 * kCutSample;
}

/// Returns the capacity for the elements between these ranks: twice the expected number, at most
/// all elements.
inline Index room_near(Index k, Index size) {
  if (!is_sampled(size)) return size;
  const SampleRanks ranks = sample_ranks(k, size);
  return std::min(size, 2 * (ranks.low - ranks.high) * ceil_div(size, kCutSample));
}

/// Checks the sizes for take_largest().
/// @throws ContractError
inline void expect_places(std::span<const float> residual, std::span<const float> velocity,
                          const Taken& taken) {
  SPARSESYNC_EXPECT(taken.values.width, ==, Index{1});
  SPARSESYNC_EXPECT(taken.values.rows, ==, std::ssize(taken.indices));
  if (taken.velocities.empty()) return;
  SPARSESYNC_EXPECT(taken.velocities.size(), ==, taken.indices.size());
  SPARSESYNC_EXPECT(velocity.size(), ==, residual.size());
}
}  // namespace detail

namespace cpu {
/// Finds the threshold that selects the k elements with the largest magnitudes. Among equal
/// magnitudes it selects the first elements. If fewer than k elements are nonzero, it selects all
/// of these.
///
/// A sample first bounds the threshold. The search then covers only the elements in these bounds,
/// or all elements if the sample misled. Based on Lin et al., "Deep Gradient Compression", ICLR
/// 2018, section 5, but exact. Does not synchronize the stream.
/// @param k    at least 0
/// @param cut  in the context's memory
void find_cut(const Context& context, std::span<const float> values, Index k, MagnitudeCut* cut,
              CutWorkspace& workspace);

/// Counts the elements that a threshold selects. Does not synchronize the stream.
/// @param cut    in the context's memory
/// @param count  receives the number of elements
void count_taken(const Context& context, std::span<const float> values, const MagnitudeCut* cut,
                 Count count);

/// Extracts the selected elements from the residual. Writes each element, rounded; the residual
/// keeps the rounding error, as in take_rows(). Writes its velocity and sets it to 0 (momentum
/// factor masking: Lin et al., section 3.3). Does not synchronize the stream.
/// @param residual    aligned for f32
/// @param velocity    the same size as the residual if taken.velocities is not empty; otherwise
///                    ignored
/// @param cut         in the context's memory
/// @param taken       output; elements that exceed its capacity stay in the residual
/// @param count       receives the number of selected elements
/// @param not_finite  incremented by the number of elements that are not finite after rounding,
///                    which stay in the residual
/// @throws ContractError for another dtype or other sizes
void take_largest(const Context& context, std::span<float> residual, std::span<float> velocity,
                  const MagnitudeCut* cut, const Taken& taken, Count count, Count not_finite);
}  // namespace cpu

namespace cuda {
/// Largest number of elements per launch: a word of the kernel holds two counts of them.
inline constexpr Index kMostTakenAtOnce = Index{1} << 30;

/// Does the work of take_largest() in several launches of at most `most` elements. Does not
/// synchronize the stream.
/// @param most  at most kMostTakenAtOnce
void take_largest_in_parts(const Context& context, std::span<float> residual,
                           std::span<float> velocity, const MagnitudeCut* cut, const Taken& taken,
                           Count count, Count not_finite, Index most);
}  // namespace cuda

SPARSESYNC_OPERATION(find_cut);
SPARSESYNC_OPERATION(count_taken);
SPARSESYNC_OPERATION(take_largest);

}  // namespace sparsesync
