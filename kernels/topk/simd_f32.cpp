// SIMD implementations of loops over f32.
#include "kernels/topk/simd_f32.h"

#include <algorithm>
#include <cmath>

#include "kernels/rows/row.h"
#include "kernels/topk/reduction_order.h"
#include "kernels/topk/topk.h"

#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): the name is Highway's
#define HWY_TARGET_INCLUDE "kernels/topk/simd_f32.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of the file once per target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sparsesync::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // without vector instructions, the callers' loops do all the work

Index find_large_simd(std::span<const float>, std::uint32_t, std::uint32_t*, Index*) {
  return 0;
}

Index sum_absolute_simd(std::span<const float>, PartialSums&) {
  return 0;
}

Index add_with_velocity_simd(const std::byte*, float, const Velocity&, std::span<float>, Index*) {
  return 0;
}

#else

using D = hn::ScalableTag<float>;
using DInt = hn::ScalableTag<std::int32_t>;
using DDouble = hn::ScalableTag<double>;

constexpr std::uint64_t kTop = std::uint64_t{1} << 63U;

/// Prefetches `count` values far enough ahead that they arrive in time. The hardware prefetcher
/// stops at page boundaries.
constexpr Index kAhead = 3072;

template <Index count>
HWY_INLINE void prefetch(const float* from) {
  for (Index i = 0; i < count; i += 16) __builtin_prefetch(from + kAhead + i);
}

/// Finds large values, 64 values at a time.
/// @return number of values that were examined
Index find_large_simd(std::span<const float> values, std::uint32_t least, std::uint32_t* places,
                      Index* found) {
  const D d;
  const DInt di;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const auto below = hn::Set(di, static_cast<std::int32_t>(least - 1));
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  const float* const from = values.data();
  const Index whole = std::ssize(values) / 64 * 64;
  const auto is_large = [&](Index at) HWY_ATTR {
    const auto bits = hn::And(hn::BitCast(di, hn::LoadU(d, from + at)), magnitude_bits);
    return hn::Gt(bits, below);
  };
  std::uint32_t* to = places;
  for (Index begin = 0; begin < whole; begin += 64) {
    prefetch<64>(from + begin);
    std::uint8_t bytes[8 + 8] = {};  // storing a mask may write more bytes than the mask has
    for (Index i = 0; i < 64; i += std::max<Index>(lanes, 8)) {
      std::uint8_t* const marks = bytes + i / 8;
      hn::StoreMaskBits(di, is_large(begin + i), marks);
      if (lanes == 4) {
        std::uint8_t upper = 0;
        hn::StoreMaskBits(di, is_large(begin + i + 4), &upper);
        *marks = static_cast<std::uint8_t>(*marks | upper << 4U);
      }
    }
    std::uint64_t left = 0;
    std::memcpy(&left, bytes, sizeof(left));
    const auto count = static_cast<Index>(hwy::PopCount(left));
    const auto first = static_cast<std::uint32_t>(begin);
    // Write the first positions unconditionally, which saves branches. The next ones overwrite
    // those that are not valid.
    const auto write = [&](Index at) HWY_ATTR {
      to[at] = first + static_cast<std::uint32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(left | kTop));
      left &= left - 1;
    };
    for (Index at = 0; at < 4; ++at) write(at);
    if (count > 4) {
      for (Index at = 4; at < kPlacesBehind; ++at) write(at);
      for (Index at = kPlacesBehind; at < count; ++at) write(at);
    }
    to += count;
  }
  *found = to - places;
  return whole;
}

/// Adds values to all partial sums, which start from 0, as long as there is a value for each sum.
/// @return number of values that were added
Index sum_absolute_simd(std::span<const float> values, PartialSums& sums) {
  const DDouble d;
  const hn::Rebind<float, DDouble> half;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const Index whole = std::ssize(values) / kPartialSums * kPartialSums;
  const float* const from = values.data();
  // Each pass keeps 4 vectors of sums in registers. The widest vectors hold all 32 sums in one
  // pass; the narrowest hold 8 sums per pass.
  constexpr Index kVectors = 4;
  for (Index first = 0; first < kPartialSums; first += kVectors * lanes) {
    auto sum0 = hn::Zero(d);
    auto sum1 = hn::Zero(d);
    auto sum2 = hn::Zero(d);
    auto sum3 = hn::Zero(d);
    for (Index i = first; i < whole; i += kPartialSums) {
      __builtin_prefetch(from + kAhead + i);
      __builtin_prefetch(from + kAhead + i + 16);
      sum0 = hn::Add(sum0, hn::PromoteTo(d, hn::Abs(hn::LoadU(half, from + i))));
      sum1 = hn::Add(sum1, hn::PromoteTo(d, hn::Abs(hn::LoadU(half, from + i + lanes))));
      sum2 = hn::Add(sum2, hn::PromoteTo(d, hn::Abs(hn::LoadU(half, from + i + 2 * lanes))));
      sum3 = hn::Add(sum3, hn::PromoteTo(d, hn::Abs(hn::LoadU(half, from + i + 3 * lanes))));
    }
    double* const to = sums.data() + first;
    hn::StoreU(sum0, d, to);
    hn::StoreU(sum1, d, to + lanes);
    hn::StoreU(sum2, d, to + 2 * lanes);
    hn::StoreU(sum3, d, to + 3 * lanes);
  }
  return whole;
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

HWY_EXPORT(find_large_simd);
HWY_EXPORT(sum_absolute_simd);
HWY_EXPORT(add_with_velocity_simd);

}  // namespace

Index find_large(std::span<const float> values, std::uint32_t least,
                 std::span<std::uint32_t> places) {
  Index found = 0;
  Index i = HWY_DYNAMIC_DISPATCH(find_large_simd)(values, least, places.data(), &found);
  for (; i < std::ssize(values); ++i) {
    places[static_cast<std::size_t>(found)] = static_cast<std::uint32_t>(i);
    found += magnitude_of(values[static_cast<std::size_t>(i)]) >= least ? 1 : 0;
  }
  return found;
}

double sum_absolute(std::span<const float> values) {
  PartialSums sums{};
  for (Index i = HWY_DYNAMIC_DISPATCH(sum_absolute_simd)(values, sums); i < std::ssize(values);
       ++i) {
    sums[static_cast<std::size_t>(i % kPartialSums)] +=
        static_cast<double>(std::abs(values[static_cast<std::size_t>(i)]));
  }
  return tree_reduce(sums);
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
