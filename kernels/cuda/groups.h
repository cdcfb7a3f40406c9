// Cooperative searches by lanes of a warp. For kernel sources only.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/base/views.h"
#include "kernels/cuda/launch.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync::cuda {

/// Replaces std::min() in kernels.
__device__ inline Index smaller(Index a, Index b) {
  return a < b ? a : b;
}

/// A group of 2^bits neighbouring lanes of a warp that work together. The other groups of the warp
/// work beside it.
class LaneGroup {
 public:
  /// Creates the group of the calling thread.
  __device__ explicit LaneGroup(unsigned bits)
      : bits_(bits), lane_(threadIdx.x & ((1U << bits) - 1)) {}

  __device__ unsigned lanes() const { return 1U << bits_; }
  /// Returns the lane of this thread within its group.
  __device__ unsigned lane() const { return lane_; }
  /// Returns the number of this group within the block.
  __device__ unsigned number() const { return threadIdx.x >> bits_; }
  /// Returns the number of groups in the block.
  __device__ unsigned count() const { return blockDim.x >> bits_; }

  /// Returns how many consecutive lanes of the group, from the first, pass true. All lanes of the
  /// warp call it.
  __device__ unsigned leading(bool yes) const {
    const unsigned noes = ~votes(yes);
    const unsigned first =
        noes == 0 ? kWarp : static_cast<unsigned>(__ffs(static_cast<int>(noes))) - 1;
    return first < lanes() ? first : lanes();
  }

  /// Does the same as lower_bound(), each group for its own elements. All lanes of the warp call
  /// it.
  __device__ Index lower_bound(const Index* elements, Index size, Index bound) const {
    const unsigned shift = bits_ == 0 ? 1 : bits_;
    Index begin = 0;
    while (__any_sync(kAllLanes, size > 0 ? 1 : 0) != 0) {
      // Each lane probes the last element of a step.
      const Index step = (size >> shift) + 1;
      const Index probe = (lane_ + 1) * step - 1;
      const bool below = probe < size && elements[begin + probe] < bound;
      const Index passed = leading(below) * step;
      begin += passed;
      size = smaller(step - 1, size - passed);
    }
    return begin;
  }

 private:
  /// Returns the votes of the group's lanes, from bit 0.
  __device__ unsigned votes(bool yes) const {
    const unsigned first = threadIdx.x % kWarp - lane_;
    return __ballot_sync(kAllLanes, yes ? 1 : 0) >> first;
  }

  unsigned bits_;
  unsigned lane_;
};

/// Writes group_begin[0] to group_begin[groups]. Called for each position of a list that is ordered
/// by group.
///
/// A thread that sees a new group writes the begin of each group since the previous one. The last
/// thread also writes the begin of each later group. An empty list has no calls, so nothing is
/// written.
/// @param before  group of the previous position; ignored for the first one
__device__ inline void write_begins(Index place, Index size, Index before, Index group,
                                    Index groups, Index* group_begin) {
  for (Index next = place == 0 ? 0 : before + 1; next <= group; ++next) group_begin[next] = place;
  if (place + 1 < size) return;
  for (Index next = group + 1; next <= groups; ++next) group_begin[next] = size;
}

/// Computes the group of RowGroups::locate(), without the position, in 32 bits. 64-bit arithmetic
/// takes several times as long, and 64-bit division is slowest.
class NarrowGroups {
 public:
  /// Returns whether 32-bit numbers suffice for `groups`.
  static bool holds(const RowGroups& groups) {
    return groups.bijection().rows() <= Index{1} << 32 && groups.groups() < Index{1} << 31;
  }

  /// @pre holds(from)
  explicit NarrowGroups(const RowGroups& from)
      : mask_(static_cast<std::uint32_t>(from.bijection().mask())),
        shift_(from.bijection().shift()),
        last_(static_cast<std::uint32_t>(from.bijection().rows() - 1)),
        groups_(static_cast<std::uint32_t>(from.groups())),
        // Rounded down; for one group, 2^32 is reduced to the largest 32-bit number. A quotient is
        // therefore at most 1 too small.
        reciprocal_(static_cast<std::uint32_t>(
            std::min((std::uint64_t{1} << 32U) / groups_,
                     std::uint64_t{std::numeric_limits<std::uint32_t>::max()}))),
        offset_(static_cast<std::uint32_t>(from.offset())) {
    for (int i = 0; i < Bijection::kRounds; ++i) {
      add_[i] = static_cast<std::uint32_t>(from.bijection().round(i).add);
      multiply_[i] = static_cast<std::uint32_t>(from.bijection().round(i).multiply);
    }
  }

  /// @param row  in [0, R)
  __device__ unsigned of(Index row) const {
    auto x = static_cast<std::uint32_t>(row);
    do {
      // All arithmetic is modulo 2^b. The upper bits do no harm until a shift would bring them in.
      x += add_[0];
      for (int i = 0; i < Bijection::kRounds; ++i) {
        x = mixed(x) * multiply_[i] + add_[i + 1];
      }
      x = mixed(x);
    } while (x > last_);
    const auto quotient = static_cast<std::uint32_t>((std::uint64_t{x} * reciprocal_) >> 32U);
    std::uint32_t group = x - quotient * groups_;
    if (group >= groups_) group -= groups_;
    group += offset_;
    return group < groups_ ? group : group - groups_;
  }

 private:
  __device__ std::uint32_t mixed(std::uint32_t x) const {
    x &= mask_;
    return x ^ x >> shift_;
  }

  std::uint32_t mask_;
  std::uint32_t shift_;
  std::uint32_t last_;
  std::uint32_t groups_;
  std::uint32_t reciprocal_;
  std::uint32_t offset_;
  std::uint32_t add_[Bijection::kRounds + 1] = {};  // the last one is 0
  std::uint32_t multiply_[Bijection::kRounds] = {};
};

/// Computes the group of RowGroups::locate(), without the position, for any number of rows.
class WideGroups {
 public:
  explicit WideGroups(const RowGroups& from) : groups_(from) {}
  /// Returns a row's group.
  __device__ Index of(Index row) const { return groups_.locate(row).group; }

 private:
  RowGroups groups_;
};

// A Groups type defines how a kernel splits rows. Its count() is the number of groups, at most
// kMost. Its of(row) is the number of a row's group, or kMost if the kernel does not handle the
// row. A Number holds either value.

/// Puts all rows into one group.
struct OneGroup {
  static constexpr int kMost = 1;
  using Number = std::uint8_t;

  __device__ unsigned count() const { return 1; }
  /// Returns the only group.
  __device__ unsigned of(Index) const { return 0; }
};

/// Handles the groups whose numbers are in a range.
/// @tparam Groups  NarrowGroups or WideGroups
template <int most, typename Groups>
class SomeGroups {
 public:
  static constexpr int kMost = most;
  using Number = std::conditional_t < most<256, std::uint8_t, std::uint16_t>;

  SomeGroups(const RowGroups& from, IndexRange range)
      : groups_(from),
        begin_(static_cast<Unsigned>(range.begin)),
        count_(static_cast<unsigned>(range.size())) {}
  __device__ unsigned count() const { return count_; }
  /// Returns a row's group, counted from the first group of the range.
  __device__ unsigned of(Index row) const {
    // A number below the first group wraps around.
    const Unsigned number = static_cast<Unsigned>(groups_.of(row)) - begin_;
    return number < count_ ? static_cast<unsigned>(number) : kMost;
  }

 private:
  using Unsigned = std::make_unsigned_t<decltype(std::declval<const Groups&>().of(Index{}))>;

  Groups groups_;
  Unsigned begin_;
  unsigned count_;
};

}  // namespace sparsesync::cuda
