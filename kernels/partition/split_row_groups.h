// Processes many rows of a RowGroups at a time, with SIMD if R < 2^32. The results equal those of
// RowGroups::locate() and RowGroups::row().
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/views.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync::cpu {

/// Returns the bits of a position in a key. A key is a (group, position) pair as one number in the
/// same order: group << position_bits(groups) | position.
constexpr int position_bits(const RowGroups& groups) {
  return bit_width_below(static_cast<std::uint64_t>(groups.universe()));
}
/// Returns the bits of a key.
constexpr int key_bits(const RowGroups& groups) {
  return bit_width_below(static_cast<std::uint64_t>(groups.groups())) + position_bits(groups);
}
/// Returns the key of a place.
constexpr std::uint64_t key_of(const RowGroups& groups, RowGroups::Place place) {
  return static_cast<std::uint64_t>(place.group) << static_cast<unsigned>(position_bits(groups)) |
         static_cast<std::uint64_t>(place.position);
}

/// Sets words[i] to key << low_bits | i, for each i in `range` and the key of rows[i].
/// @param rows      each in [0, R)
/// @param low_bits  key_bits(groups) + low_bits <= 64, and each i is below 2^low_bits
/// @param words     rows.size() elements
void pack_places(const RowGroups& groups, std::span<const Index> rows, IndexRange range,
                 int low_bits, std::span<std::uint64_t> words);

/// Sets rows[i] to the row at positions[i] of `group`.
/// @param positions  each in [0, groups.size(group))
void unpack_rows(const RowGroups& groups, Index group, std::span<const Index> positions,
                 Index* rows);

}  // namespace sparsesync::cpu
