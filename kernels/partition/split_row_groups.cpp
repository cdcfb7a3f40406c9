// SIMD implementations of the per-row work of partition() and rows_at().
#include "kernels/partition/split_row_groups.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): the name is Highway's
#define HWY_TARGET_INCLUDE "kernels/partition/split_row_groups.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of the file once per target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sparsesync::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // without vector instructions, the callers' loops do all the work

Index pack_places_simd(const RowGroups&, std::span<const Index>, IndexRange range, int,
                       std::uint64_t*) {
  return range.begin;
}

Index unpack_rows_simd(const RowGroups&, Index, std::span<const Index>, Index*) {
  return 0;
}

#else

using D32 = hn::ScalableTag<std::uint32_t>;
using D64 = hn::ScalableTag<std::uint64_t>;
using DIndex = hn::ScalableTag<Index>;
using V32 = hn::Vec<D32>;

/// The parameters of a RowGroups, in 32 bits each.
struct Narrow {
  explicit Narrow(const RowGroups& from)
      : rows(static_cast<std::uint64_t>(from.bijection().rows())),
        mask(static_cast<std::uint32_t>(from.bijection().mask())),
        shift(static_cast<int>(from.bijection().shift())),
        groups(static_cast<std::uint32_t>(from.groups())),
        // Rounded down; for one group, 2^32 is reduced to the largest 32-bit number. A quotient is
        // therefore at most 1 too small.
        reciprocal(static_cast<std::uint32_t>(
            std::min((std::uint64_t{1} << 32U) / groups, (std::uint64_t{1} << 32U) - 1))),
        offset(static_cast<std::uint32_t>(from.offset())),
        position_bits(cpu::position_bits(from)) {
    for (int i = 0; i < Bijection::kRounds; ++i) {
      add[i] = static_cast<std::uint32_t>(from.bijection().round(i).add);
      multiply[i] = static_cast<std::uint32_t>(from.bijection().round(i).multiply);
      inverse[i] = static_cast<std::uint32_t>(from.bijection().round(i).inverse);
    }
  }
  std::uint64_t rows;
  std::uint32_t mask;
  int shift;
  std::uint32_t groups;
  std::uint32_t reciprocal;
  std::uint32_t offset;
  int position_bits;
  std::uint32_t add[Bijection::kRounds] = {};
  std::uint32_t multiply[Bijection::kRounds] = {};
  std::uint32_t inverse[Bijection::kRounds] = {};
};

HWY_INLINE V32 xor_shift(V32 x, int shift) {
  return hn::Xor(x, hn::ShiftRightSame(x, shift));
}

/// Number of vectors processed together, because the instructions of one walk depend on each other.
constexpr std::size_t kBlock = 4;

/// Repeats the walk until all lanes are below R. Lanes that have finished wait for the others.
template <typename Walk>
HWY_INLINE void walk_home(const Narrow& by, V32 (&x)[kBlock], const Walk& walk) {
  const D32 d;
  const V32 last = hn::Set(d, static_cast<std::uint32_t>(by.rows - 1));
  for (V32& vector : x) vector = walk(vector);
  while (true) {
    V32 largest = x[0];
    for (const V32& vector : x) largest = hn::Max(largest, vector);
    if (hn::AllFalse(d, hn::Gt(largest, last))) return;
    for (V32& vector : x) vector = hn::IfThenElse(hn::Gt(vector, last), walk(vector), vector);
  }
}

/// Computes Bijection::forward().
HWY_INLINE void forward(const Narrow& by, V32 (&x)[kBlock]) {
  walk_home(by, x, [&](V32 from) HWY_ATTR {
    const D32 d;
    const V32 mask = hn::Set(d, by.mask);
    for (int i = 0; i < Bijection::kRounds; ++i) {
      from = hn::And(hn::Add(from, hn::Set(d, by.add[i])), mask);
      from = xor_shift(from, by.shift);
      from = hn::And(hn::Mul(from, hn::Set(d, by.multiply[i])), mask);
    }
    return xor_shift(from, by.shift);
  });
}

/// Computes Bijection::backward().
HWY_INLINE void backward(const Narrow& by, V32 (&x)[kBlock]) {
  walk_home(by, x, [&](V32 from) HWY_ATTR {
    const D32 d;
    const V32 mask = hn::Set(d, by.mask);
    from = xor_shift(from, by.shift);
    for (int i = Bijection::kRounds - 1; i >= 0; --i) {
      from = hn::And(hn::Mul(from, hn::Set(d, by.inverse[i])), mask);
      from = xor_shift(from, by.shift);
      from = hn::And(hn::Sub(from, hn::Set(d, by.add[i])), mask);
    }
    return from;
  });
}

/// Returns the upper 32 bits of the products.
HWY_INLINE V32 multiply_high(V32 a, V32 b) {
  const D64 wide;
  const D32 d;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))),
                               hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, b))));
  const auto upper = hn::And(odd, hn::Set(wide, ~std::uint64_t{0} << 32U));
  return hn::BitCast(d, hn::Or(hn::ShiftRight<32>(even), upper));
}

/// Returns the keys of the places of images.
HWY_INLINE V32 keys_of(const Narrow& by, V32 image) {
  const D32 d;
  const V32 groups = hn::Set(d, by.groups);
  V32 position = multiply_high(image, hn::Set(d, by.reciprocal));
  V32 residue = hn::Sub(image, hn::Mul(position, groups));
  const auto short_by_one = hn::Gt(residue, hn::Set(d, by.groups - 1));
  position = hn::Add(position, hn::IfThenElseZero(short_by_one, hn::Set(d, 1U)));
  residue = hn::Sub(residue, hn::IfThenElseZero(short_by_one, groups));
  // Compute residue + offset, minus `groups` if it is not below `groups`. The sum may exceed 2^32.
  const auto stays = hn::Lt(residue, hn::Set(d, by.groups - by.offset));
  const V32 turned = hn::Add(residue, hn::Set(d, by.offset));
  const V32 group = hn::Sub(turned, hn::IfThenZeroElse(stays, groups));
  return hn::Or(hn::ShiftLeftSame(group, by.position_bits), position);
}

/// Loads one index below 2^32 per 32-bit lane.
HWY_INLINE V32 load_narrow(const Index* from) {
  const D32 d;
  const DIndex wide;
  const auto lower = hn::LoadU(wide, from);
  const auto upper = hn::LoadU(wide, from + hn::Lanes(wide));
  return hn::ConcatEven(d, hn::BitCast(d, upper), hn::BitCast(d, lower));
}

/// Calls store(i, numbers) twice, with vectors of 64-bit numbers. They are converted from the
/// 32-bit numbers for i and the following indices.
template <typename Store>
HWY_INLINE void for_each_wide(Index i, V32 numbers, const Store& store) {
  const D64 wide;
  store(i, hn::PromoteTo(wide, hn::LowerHalf(numbers)));
  store(i + static_cast<Index>(hn::Lanes(wide)),
        hn::PromoteTo(wide, hn::UpperHalf(hn::Half<D32>(), numbers)));
}

/// Packs rows in blocks.
/// @return the index of the first row that remains; less than a block is left
Index pack_places_simd(const RowGroups& groups, std::span<const Index> rows, IndexRange range,
                       int low_bits, std::uint64_t* words) {
  const D64 wide;
  const Narrow by(groups);
  const auto lanes = static_cast<Index>(hn::Lanes(D32()));
  const auto block = lanes * static_cast<Index>(kBlock);
  Index i = range.begin;
  for (; i + block <= range.end; i += block) {
    V32 x[kBlock];
    for (std::size_t k = 0; k < kBlock; ++k) {
      x[k] = load_narrow(rows.data() + i + static_cast<Index>(k) * lanes);
    }
    forward(by, x);
    for (std::size_t k = 0; k < kBlock; ++k) {
      for_each_wide(i + static_cast<Index>(k) * lanes, keys_of(by, x[k]),
                    [&](Index at, hn::Vec<D64> keys) HWY_ATTR {
                      const auto places = hn::Iota(wide, static_cast<std::uint64_t>(at));
                      hn::StoreU(hn::Or(hn::ShiftLeftSame(keys, low_bits), places), wide,
                                 words + at);
                    });
    }
  }
  return i;
}

/// Unpacks rows in blocks.
/// @return the index of the first row that remains; less than a block is left
Index unpack_rows_simd(const RowGroups& groups, Index group, std::span<const Index> positions,
                       Index* rows) {
  const D32 d;
  const DIndex wide;
  const Narrow by(groups);
  const V32 residue = hn::Set(d, static_cast<std::uint32_t>(groups.residue(group)));
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const auto block = lanes * static_cast<Index>(kBlock);
  Index i = 0;
  for (; i + block <= std::ssize(positions); i += block) {
    V32 x[kBlock];
    for (std::size_t k = 0; k < kBlock; ++k) {
      const V32 position = load_narrow(positions.data() + i + static_cast<Index>(k) * lanes);
      x[k] = hn::Add(hn::Mul(position, hn::Set(d, by.groups)), residue);
    }
    backward(by, x);
    for (std::size_t k = 0; k < kBlock; ++k) {
      for_each_wide(i + static_cast<Index>(k) * lanes, x[k],
                    [&](Index at, hn::Vec<D64> numbers)
                        HWY_ATTR { hn::StoreU(hn::BitCast(wide, numbers), wide, rows + at); });
    }
  }
  return i;
}

#endif  // HWY_SCALAR

}  // namespace
}  // namespace sparsesync::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsesync::cpu {
namespace {

HWY_EXPORT(pack_places_simd);
HWY_EXPORT(unpack_rows_simd);

/// Returns whether images, groups and keys fit into 32 bits.
bool is_narrow(const RowGroups& groups) {
  constexpr Index kBound = Index{1} << 32;
  return groups.bijection().rows() <= kBound && groups.groups() < kBound && key_bits(groups) <= 32;
}

}  // namespace

void pack_places(const RowGroups& groups, std::span<const Index> rows, IndexRange range,
                 int low_bits, std::span<std::uint64_t> words) {
  Index i = range.begin;
  if (is_narrow(groups)) {
    i = HWY_DYNAMIC_DISPATCH(pack_places_simd)(groups, rows, range, low_bits, words.data());
  }
  for (; i < range.end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::uint64_t key = key_of(groups, groups.locate(rows[at]));
    words[at] = key << static_cast<unsigned>(low_bits) | at;
  }
}

void unpack_rows(const RowGroups& groups, Index group, std::span<const Index> positions,
                 Index* rows) {
  Index i = 0;
  if (is_narrow(groups)) {
    i = HWY_DYNAMIC_DISPATCH(unpack_rows_simd)(groups, group, positions, rows);
  }
  for (; i < std::ssize(positions); ++i) {
    rows[i] = groups.row({group, positions[static_cast<std::size_t>(i)]});
  }
}

}  // namespace sparsesync::cpu
#endif  // HWY_ONCE
