// SIMD bodies of passes over f32.
#include "kernels/cpu/f32_passes.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/row.h"
#include "kernels/magnitude.h"

#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): the name is Highway's
#define HWY_TARGET_INCLUDE "kernels/cpu/f32_passes.cpp"
#include <hwy/foreach_target.h>  // compiles what follows once for each target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sparsesync::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // a processor without vectors: the callers' loops do it all

Index mark_large_simd(std::span<const float>, std::uint32_t, std::uint64_t*) {
  return 0;
}

Index add_absolute_simd(std::span<const float>, Lanes&) {
  return 0;
}

Index add_with_velocity_simd(const std::byte*, float, const Velocity&, std::span<float>, Index*) {
  return 0;
}

#else

using D = hn::ScalableTag<float>;
using DInt = hn::ScalableTag<std::int32_t>;
using DDouble = hn::ScalableTag<double>;

/// Asks for `count` values so far ahead that they are there when they are needed: what the
/// processor foresees by itself ends with a page.
template <Index count>
HWY_INLINE void prefetch(const float* from) {
  constexpr Index kAhead = 2048;
  for (Index i = 0; i < count; i += 16) __builtin_prefetch(from + kAhead + i);
}

/// Whole words of marks.
/// @return how many values they are of
Index mark_large_simd(std::span<const float> values, std::uint32_t least, std::uint64_t* marks) {
  const D d;
  const DInt di;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const auto below = hn::Set(di, static_cast<std::int32_t>(least - 1));
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  const float* const from = values.data();
  const Index words = std::ssize(values) / 64;
  const auto is_large = [&](Index at) HWY_ATTR {
    const auto bits = hn::And(hn::BitCast(di, hn::LoadU(d, from + at)), magnitude_bits);
    return hn::Gt(bits, below);
  };
  for (Index word = 0; word < words; ++word) {
    prefetch<64>(from + word * 64);
    alignas(8) std::uint8_t bytes[8 + 8] = {};  // a vector of marks may write more than its own
    for (Index i = 0; i < 64; i += std::max<Index>(lanes, 8)) {
      const Index at = word * 64 + i;
      std::uint8_t* const to = bytes + i / 8;
      hn::StoreMaskBits(di, is_large(at), to);
      if (lanes == 4) {
        std::uint8_t upper = 0;
        hn::StoreMaskBits(di, is_large(at + 4), &upper);
        *to = static_cast<std::uint8_t>(*to | upper << 4U);
      }
    }
    std::memcpy(marks + word, bytes, 8);
  }
  return words * 64;
}

/// Whole rounds of all lanes.
Index add_absolute_simd(std::span<const float> values, Lanes& sums) {
  const DDouble d;
  const hn::Rebind<float, DDouble> half;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const Index rounds = std::ssize(values) / kLanes;
  double* const to = sums.data();
  for (Index round = 0; round < rounds; ++round) {
    const float* const from = values.data() + round * kLanes;
    prefetch<kLanes>(from);
    for (Index lane = 0; lane < kLanes; lane += 2 * lanes) {
      const auto first = hn::PromoteTo(d, hn::Abs(hn::LoadU(half, from + lane)));
      const auto second = hn::PromoteTo(d, hn::Abs(hn::LoadU(half, from + lane + lanes)));
      hn::StoreU(hn::Add(hn::LoadU(d, to + lane), first), d, to + lane);
      hn::StoreU(hn::Add(hn::LoadU(d, to + lane + lanes), second), d, to + lane + lanes);
    }
  }
  return rounds * kLanes;
}

Index add_with_velocity_simd(const std::byte* gradient, float factor, const Velocity& velocity,
                             std::span<float> residual, Index* lost) {
  const D d;
  const DInt di;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const auto by = hn::Set(d, factor);
  const auto momentum = hn::Set(d, velocity.momentum);
  const auto exponent = hn::Set(di, 0x7F800000);
  const auto is_infinite = [&](hn::Vec<D> value) HWY_ATTR {
    return hn::Eq(hn::And(hn::BitCast(di, value), exponent), exponent);
  };
  float* const to = residual.data();
  float* const to_velocity = velocity.values.data();
  Index count = 0;
  const Index whole = std::ssize(residual) / lanes * lanes;
  for (Index at = 0; at < whole; at += lanes) {
    auto g = hn::LoadU(hn::ScalableTag<std::uint8_t>(),
                       reinterpret_cast<const std::uint8_t*>(gradient) + at * 4);
    const auto scaled = hn::Mul(by, hn::BitCast(d, g));
    const auto velocity_before = hn::LoadU(d, to_velocity + at);
    const auto before = hn::LoadU(d, to + at);
    const auto faster = hn::Add(hn::Mul(momentum, velocity_before), scaled);
    const auto push = velocity.nesterov ? hn::Add(scaled, hn::Mul(momentum, faster)) : faster;
    const auto sum = hn::Add(before, push);
    const auto bad = hn::RebindMask(d, hn::Or(is_infinite(faster), is_infinite(sum)));
    hn::StoreU(hn::IfThenElse(bad, velocity_before, faster), d, to_velocity + at);
    hn::StoreU(hn::IfThenElse(bad, before, sum), d, to + at);
    if (!hn::AllFalse(d, bad)) count += static_cast<Index>(hn::CountTrue(d, bad));
  }
  *lost += count;
  return whole;
}

#endif

}  // namespace
}  // namespace sparsesync::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsesync::cpu {
namespace {

HWY_EXPORT(mark_large_simd);
HWY_EXPORT(add_absolute_simd);
HWY_EXPORT(add_with_velocity_simd);

}  // namespace

void mark_large(std::span<const float> values, std::uint32_t least,
                std::span<std::uint64_t> marks) {
  Index i = least == 0 ? 0 : HWY_DYNAMIC_DISPATCH(mark_large_simd)(values, least, marks.data());
  std::ranges::fill(marks.subspan(static_cast<std::size_t>(i / 64)), std::uint64_t{0});
  for (; i < std::ssize(values); ++i) {
    const bool is_large = magnitude_of(values[static_cast<std::size_t>(i)]) >= least;
    marks[static_cast<std::size_t>(i / 64)] |= std::uint64_t{is_large} << (i % 64);
  }
}

void add_absolute(std::span<const float> values, Lanes& lanes) {
  Index i = HWY_DYNAMIC_DISPATCH(add_absolute_simd)(values, lanes);
  for (; i < std::ssize(values); ++i) {
    lanes[static_cast<std::size_t>(i % kLanes)] +=
        static_cast<double>(std::abs(values[static_cast<std::size_t>(i)]));
  }
}

Index add_with_velocity(const std::byte* gradient, float factor, const Velocity& velocity,
                        std::span<float> residual) {
  Index lost = 0;
  Index i =
      HWY_DYNAMIC_DISPATCH(add_with_velocity_simd)(gradient, factor, velocity, residual, &lost);
  for (; i < std::ssize(residual); ++i) {
    const auto at = static_cast<std::size_t>(i);
    detail::OwedElement element{residual[at], velocity.values[at]};
    lost += element.add(factor * load<float>(gradient, i), velocity.momentum, velocity.nesterov)
                ? 0
                : 1;
    residual[at] = element.residual;
    velocity.values[at] = element.velocity;
  }
  return lost;
}

}  // namespace sparsesync::cpu
#endif  // HWY_ONCE
