// Takes the elements of the largest magnitudes: top-k by a threshold.
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

/// Of an f32 its bits without the sign: ordered as the absolute values are; those of NaNs lie above
/// infinity's.
SPARSESYNC_HOST_DEVICE inline std::uint32_t magnitude_of(float value) {
  return detail::bits_of_float(value) & 0x7FFFFFFFU;
}

/// Which elements are taken by their magnitudes. Zeros never are.
struct MagnitudeCut {
  std::uint32_t level = 0;  // those above it
  Index ties = 0;           // and of those that are equal to it so many, the first ones
};

/// Of those that are taken what stood there. Each has as many places, or none.
struct Taken {
  std::span<Index> indices;     // of the elements, increasing
  Matrix values;                // rounded: f32, f16 or bf16; of width 1, as many rows as indices
  std::span<float> velocities;  // none: there are none, or they are left as they are
};

/// What find_cut() needs beside: it only grows.
struct CutWorkspace {
  explicit CutWorkspace(const Context& context) : near(context) {}
  Buffer<std::uint32_t> near;  // magnitudes of the elements that the sample does not decide on
};

namespace detail {
/// How many elements find_cut() looks at first, where there are many.
inline constexpr Index kCutSample = 4096;

/// Where the i-th of them is: anywhere in the i-th of kCutSample equal parts.
SPARSESYNC_HOST_DEVICE inline Index sampled_place(Index i, Index size) {
  const Index begin = i * size / kCutSample;
  const Index end = (i + 1) * size / kCutSample;
  const auto offset =
      mix64(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(end - begin);
  return begin + static_cast<Index>(offset);
}

/// Of the sample in decreasing order the places that what is looked for lies between, three
/// standard deviations apart from where it is expected; they may lie outside of it.
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
/// Whether there are so many elements that a sample tells something.
inline bool is_sampled(Index size) {
  return size >= 4 * kCutSample;
}

/// Room for the elements that lie between those places: twice what is expected, or all.
inline Index room_near(Index k, Index size) {
  if (!is_sampled(size)) return size;
  const SampleRanks ranks = sample_ranks(k, size);
  return std::min(size, 2 * (ranks.low - ranks.high) * ceil_div(size, kCutSample));
}

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
/// The cut that takes the k elements of the largest magnitudes; of equal ones the first; all that
/// are not zero where those are fewer. By a sample first, which tells what level it must be near;
/// then among those near by, or, where the sample misled, among all (Lin et al., "Deep Gradient
/// Compression", ICLR 2018, section 5, corrected to be exact). Does not synchronize the stream.
/// @param k    0 or more
/// @param cut  in the context's memory
void find_cut(const Context& context, std::span<const float> values, Index k, MagnitudeCut* cut,
              CutWorkspace& workspace);

/// How many elements a cut takes. Does not synchronize the stream.
/// @param cut    in the context's memory
/// @param count  receives it
void count_taken(const Context& context, std::span<const float> values, const MagnitudeCut* cut,
                 Count count);

/// Takes elements out of the residual: each is written, rounded, and what is lost by rounding stays
/// (as take_rows()); its velocity is written, and becomes 0 (momentum factor masking: Lin et al.,
/// section 3.3). Does not synchronize the stream.
/// @param residual    of an aligned address
/// @param velocity    as long as the residual, where taken.velocities has places; else not looked
/// at
/// @param cut         in the context's memory
/// @param taken       with room for all that the cut takes; what does not fit is left where it is
/// @param count       receives how many the cut takes
/// @param not_finite  grows by the elements that are not finite once they are rounded, which stay
/// @throws ContractError for another dtype or other numbers of places
void take_largest(const Context& context, std::span<float> residual, std::span<float> velocity,
                  const MagnitudeCut* cut, const Taken& taken, Count count, Count not_finite);
}  // namespace cpu

namespace cuda {
/// Elements that one launch examines: a word of the kernel holds two counts of them.
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
