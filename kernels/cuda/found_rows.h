// Compacts the marked rows of a tile and writes them to their output positions. For kernel sources
// only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/groups.h"
#include "kernels/cuda/split.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

/// A row's index within its tile.
using TileRow = std::uint16_t;

// ---- A warp's list of rows, and their groups. All lanes of the warp call these functions.

/// Adds the number of rows of each group to Split::next().
/// @param group_of  group_of(i): the group of row i
template <typename Groups, typename GroupOf>
__device__ void count_groups(const Groups& groups, const GroupOf& group_of, unsigned size,
                             unsigned* next) {
  const unsigned lane = threadIdx.x % kWarp;
  if constexpr (Groups::kMost == 1) {
    if (lane == 0) next[0] += size;
  } else {
    for (unsigned i = lane; i < size; i += kWarp) {
      const unsigned group = group_of(i);
      if (group < groups.count()) atomicAdd(next + group, 1U);
    }
  }
}

/// Sets numbers[i] to the group of row first + rows[i] and counts like count_groups(). Only counts
/// if there are no groups.
template <typename Groups>
__device__ void name_and_count_groups(const Groups& groups, Index first, const TileRow* rows,
                                      unsigned size, typename Groups::Number* numbers,
                                      unsigned* next) {
  const auto name = [&](unsigned i) {
    const unsigned group = groups.of(first + rows[i]);
    numbers[i] = static_cast<typename Groups::Number>(group);
    return group;
  };
  count_groups(groups, name, size, next);
}

/// Calls placed(i, at, group) for each row, with its position among all rows of the tile. Rows of a
/// group keep their order.
/// @param group_of  group_of(i): the group of row i
/// @param next      Split::next() after scan_counts()
template <typename Groups, typename GroupOf, typename Placed>
__device__ void place_groups(const Groups& groups, const GroupOf& group_of, unsigned size,
                             unsigned* next, const Placed& placed) {
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned begin = 0; begin < size; begin += kWarp) {
    const unsigned i = begin + lane;
    unsigned group = groups.count();
    if (i < size) group = Groups::kMost == 1 ? 0 : group_of(i);
    const bool own = group < groups.count();
    const unsigned peers =
        peers_of<bit_width_below(Groups::kMost)>(group, __ballot_sync(kAllLanes, own ? 1 : 0));
    const auto before = static_cast<unsigned>(__popc(peers & ((1U << lane) - 1)));
    const unsigned at = own ? next[group] + before : 0;
    __syncwarp();
    if (own && before == 0) next[group] = at + static_cast<unsigned>(__popc(peers));
    __syncwarp();
    if (own) placed(i, at, group);
  }
}

// ---- Marked rows.

/// Marks rows of a tile and lists them by group. Lives in shared memory. All threads of the block
/// call each function, in the order of declaration.
template <typename Groups>
class MarkedRows {
 public:
  static constexpr Index kMost = 4096;  // rows of a tile, at most

  /// Clears all marks. Takes effect after the block has synchronized.
  __device__ void clear() {
    for (unsigned i = threadIdx.x; i < kMost; i += kBlock) marks_[i] = 0;
  }
  /// Marks a row. Any thread may call it, any number of times.
  __device__ void mark(Index row) { marks_[row] = 1; }

  /// Lists the marked rows, counts their groups, and orders them by group.
  /// @param rows   number of rows in the tile
  /// @param first  row number of the tile's first row, as `groups` expects it
  /// @return number of marked rows
  __device__ unsigned scan_counts(const Groups& groups, Split<Groups::kMost>& split,
                                  const TileSums& sums, unsigned rows, Index first) {
    __syncthreads();
    const unsigned warp = threadIdx.x / kWarp;
    const unsigned size = list(rows);
    __syncwarp();
    name_and_count_groups(groups, first, rows_[warp], size, numbers_[warp], split.next());
    const unsigned all = split.scan_counts(sums);
    const auto group_of = [&](unsigned i) -> unsigned { return numbers_[warp][i]; };
    place_groups(groups, group_of, size, split.next(), [&](unsigned i, unsigned at, unsigned) {
      order_[at] = static_cast<std::uint16_t>(warp * kOfWarp + i);
    });
    return all;
  }

  // Valid after the block has synchronized.

  /// Returns the row at a position in the order of groups.
  __device__ TileRow row(unsigned at) const {
    return rows_[order_[at] / kOfWarp][order_[at] % kOfWarp];
  }
  /// Returns the group of the row at a position.
  __device__ unsigned group(unsigned at) const {
    return Groups::kMost == 1 ? 0 : numbers_[order_[at] / kOfWarp][order_[at] % kOfWarp];
  }

 private:
  static constexpr unsigned kOfWarp = kMost / kBlockWarps;

  /// Lists the marked rows of the warp's share.
  __device__ unsigned list(unsigned rows) {
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned warp = threadIdx.x / kWarp;
    const unsigned share = round_up(ceil_div<unsigned>(rows, kBlockWarps), unsigned{kWarp});
    const unsigned end = share * (warp + 1) < rows ? share * (warp + 1) : rows;
    unsigned size = 0;
    for (unsigned begin = share * warp; begin < end; begin += kWarp) {
      const unsigned row = begin + lane;
      const bool marked = row < end && marks_[row] != 0;
      const unsigned which = __ballot_sync(kAllLanes, marked ? 1 : 0);
      if (marked) {
        const auto before = static_cast<unsigned>(__popc(which & ((1U << lane) - 1)));
        rows_[warp][size + before] = static_cast<TileRow>(row);
      }
      size += static_cast<unsigned>(__popc(which));
    }
    return size;
  }

  std::uint8_t marks_[kMost];
  TileRow rows_[kBlockWarps][kOfWarp];
  std::uint16_t order_[kMost];
  typename Groups::Number numbers_[kBlockWarps][Groups::kMost == 1 ? 1 : kOfWarp];
};

// ---- Copying rows.

/// Division of row copies among threads: 2^lane_bits threads copy a row in units of `unit_bytes`
/// bytes.
struct CopyPlan {
  int unit_bytes;
  unsigned lane_bits;
  Index units;  // units per row
};

/// Plans copies of rows.
/// @param source   any address; if it is not aligned for an element, units are read byte by byte
/// @param target   address that rows are written to
/// @param sizes    values, in addition to row_bytes, that the unit must divide; or'ed together
/// @param element  size in bytes
inline CopyPlan plan_copy(const std::byte* source, const std::byte* target, Index sizes,
                          Index row_bytes, Index element) {
  const std::uint64_t written = address_of(target) | static_cast<std::uint64_t>(sizes | row_bytes);
  int unit = common_unit(written | address_of(source));
  if (unit < element) unit = std::min(common_unit(written), static_cast<int>(element));
  const Index units = row_bytes / unit;
  const int bits = bit_width_below(static_cast<std::uint64_t>(units));
  return {unit, static_cast<unsigned>(std::min(bits, bit_width_below(kBlock))), units};
}

/// Loads a unit of a row.
template <typename Unit>
__device__ Unit load_unit(const std::byte* from) {
  if constexpr (sizeof(Unit) == 16) {
    return *reinterpret_cast<const Unit*>(from);
  } else {
    return load_anywhere<Unit>(from);
  }
}

/// Writes the tile's rows that fit into the output, and their row numbers. All threads of the block
/// call it.
/// @param count   number of rows
/// @param source  source(row): a row of the tile; it has number(), and load<Unit>(i) for its unit i
template <typename Unit, typename Groups, typename Source>
__device__ void write_rows(const MarkedRows<Groups>& marked, const Split<Groups::kMost>& split,
                           unsigned count, const CopyPlan& plan, const Source& source,
                           Index* indices, std::byte* values) {
  constexpr int kInFlight = sizeof(Unit) == 16 ? 2 : 4;
  const unsigned lanes = 1U << plan.lane_bits;
  const unsigned lane = threadIdx.x & (lanes - 1);
  for (unsigned at = threadIdx.x >> plan.lane_bits; at < count; at += kBlock >> plan.lane_bits) {
    const unsigned group = marked.group(at);
    if (!split.fits(group, at)) continue;
    const Index to = split.to(group, at);
    const auto row = source(marked.row(at));
    if (lane == 0) indices[to] = row.number();
    auto* const target = reinterpret_cast<Unit*>(values) + to * plan.units;
    for (Index begin = lane; begin < plan.units; begin += kInFlight * lanes) {
      Unit units[kInFlight];
      for (int k = 0; k < kInFlight; ++k) {
        const Index unit = begin + k * static_cast<Index>(lanes);
        if (unit < plan.units) units[k] = row.template load<Unit>(unit);
      }
      for (int k = 0; k < kInFlight; ++k) {
        const Index unit = begin + k * static_cast<Index>(lanes);
        if (unit < plan.units) target[unit] = units[k];
      }
    }
  }
}

/// Does the same as write_rows(), in units of the plan.
template <typename Groups, typename Source>
__device__ void write_planned_rows(const MarkedRows<Groups>& marked,
                                   const Split<Groups::kMost>& split, unsigned count,
                                   const CopyPlan& plan, const Source& source, Index* indices,
                                   std::byte* values) {
  switch (plan.unit_bytes) {
    case 16:
      return write_rows<uint4>(marked, split, count, plan, source, indices, values);
    case 8:
      return write_rows<std::uint64_t>(marked, split, count, plan, source, indices, values);
    case 4:
      return write_rows<std::uint32_t>(marked, split, count, plan, source, indices, values);
    case 2:
      return write_rows<std::uint16_t>(marked, split, count, plan, source, indices, values);
    default:
      return write_rows<std::uint8_t>(marked, split, count, plan, source, indices, values);
  }
}

}  // namespace sparsesync::cuda
