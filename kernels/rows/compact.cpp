// CPU implementations of compact() and compact_groups().
#include "kernels/rows/compact.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/rows/row.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/zero.h"

namespace sparsesync::cpu {
namespace {

/// Calls found(row) for each nonzero row of `rows`, in order.
///
/// Memory is read from several streams in turn, because one stream does not saturate it. Rows are
/// tested one by one; narrow rows are tested in groups that fill a cache line.
template <typename T, typename Found>
void find_rows(ConstMatrix dense, IndexRange rows, Found&& found) {
  constexpr Index kLine = 64;
  constexpr Index kStreams = 4;
  constexpr Index kTileBytes = Index{1} << 16;  // stays cached until its rows are copied
  std::array<bool, kTileBytes / kLine> nonzero{};
  const Index row_bytes = std::max<Index>(dense.row_bytes(), 1);
  const Index together = ceil_div(kLine, row_bytes);
  const Index tile = std::max<Index>(kTileBytes / row_bytes / together, 1) * together;
  for (IndexRange at{rows.begin, 0}; at.begin < rows.end; at.begin = at.end) {
    at.end = std::min(at.begin + tile, rows.end);
    const Index units = ceil_div(at.size(), together);
    const Index step = ceil_div(units, kStreams);
    const auto rows_of = [&](Index unit) {
      const Index begin = at.begin + unit * together;
      return IndexRange{begin, std::min(begin + together, at.end)};
    };
    for (Index i = 0; i < step; ++i) {
      for (Index unit = i; unit < units; unit += step) {
        const IndexRange of_unit = rows_of(unit);
        nonzero[static_cast<std::size_t>(unit)] =
            !are_zero<T>(dense.data + of_unit.begin * row_bytes, of_unit.size() * dense.width);
      }
    }
    for (Index unit = 0; unit < units; ++unit) {
      if (!nonzero[static_cast<std::size_t>(unit)]) continue;
      const IndexRange of_unit = rows_of(unit);
      find_nonzero<T>(dense.data + of_unit.begin * row_bytes, of_unit.size(), dense.width,
                      [&](Index row) { found(of_unit.begin + row); });
    }
  }
}

/// Output offset of each part, followed by the total number of rows.
using Offsets = std::array<Index, kMostParts + 1>;

/// Finds the nonzero rows on all threads. Each part first writes its rows to its share of
/// `indices`, up to the capacity of the share.
/// @return whether all rows fit; they are then at the start of `indices`, without gaps
template <typename T>
bool note_rows(const Context& context, ConstMatrix dense, int parts, std::span<Index> indices,
               Offsets& offsets) {
  const auto room = std::ssize(indices);
  const EvenRanges shares(room, parts);
  PartCounts counts{};
  for_each_part(context, dense.rows, parts, [&](int part, IndexRange rows) {
    const std::span<Index> notes = part_of(indices, shares.range(part));
    std::size_t count = 0;
    find_rows<T>(dense, rows, [&](Index row) {
      if (count < notes.size()) notes[count] = row;
      ++count;
    });
    counts[static_cast<std::size_t>(part)] = static_cast<Index>(count);
  });
  bool noted = true;
  for (int part = 0; part < parts; ++part) {
    const auto at = static_cast<std::size_t>(part);
    const IndexRange share = shares.range(part);
    noted = noted && counts[at] <= share.size();
    if (noted) {
      const auto from = indices.begin() + share.begin;
      std::copy(from, from + counts[at], indices.begin() + offsets[at]);
    }
    offsets[at + 1] = offsets[at] + counts[at];
  }
  return noted;
}

}  // namespace

void compact(const Context& context, ConstMatrix dense, Index first_row, std::span<Index> indices,
             Matrix values, Count count) {
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(indices));
  SPARSESYNC_EXPECT(values.width, ==, dense.width);
  const Index row_bytes = dense.row_bytes();
  const int parts = row_parts(context, dense.rows, row_bytes);
  for_dtype(dense.dtype, [&]<typename T>(T) {
    Offsets offsets{};
    if (parts > 1 && note_rows<T>(context, dense, parts, indices, offsets)) {
      const Index found = offsets[static_cast<std::size_t>(parts)];
      const std::span<Index> noted = indices.first(static_cast<std::size_t>(found));
      gather_rows(context, dense, noted, 0, {values.data, values.dtype, found, values.width});
      shift(context, noted, first_row, noted);
      *count.location() = found;
      return;
    }
    for_each_part(context, dense.rows, parts, [&](int part, IndexRange rows) {
      Index at = offsets[static_cast<std::size_t>(part)];
      find_rows<T>(dense, rows, [&](Index row) {
        if (at < values.rows) {
          indices[static_cast<std::size_t>(at)] = first_row + row;
          copy_row(values.data + at * row_bytes, dense.data + row * row_bytes, row_bytes);
        }
        ++at;
      });
      if (part == parts - 1) *count.location() = at;
    });
  });
}

void compact_groups(const Context& context, ConstMatrix dense, Index first_row,
                    const RowGroups& groups, std::span<Index> indices, Matrix values,
                    std::span<Index> counts) {
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(indices));
  SPARSESYNC_EXPECT(values.width, ==, dense.width);
  SPARSESYNC_EXPECT(std::ssize(counts), ==, groups.groups());
  SPARSESYNC_EXPECT(first_row, >=, Index{0});
  SPARSESYNC_EXPECT(first_row + dense.rows, <=, groups.bijection().rows());
  const Index row_bytes = dense.row_bytes();
  const Index room = std::ssize(indices) / groups.groups();
  // Per part (except the last) and group: the number of rows, later their output offset.
  constexpr Index kMostOffsets = 4096;
  std::array<Index, kMostOffsets> offsets{};
  const auto parts = static_cast<int>(std::min<Index>(row_parts(context, dense.rows, row_bytes),
                                                      kMostOffsets / groups.groups() + 1));
  const auto of_part = [&](int part) {
    return part == parts - 1 ? counts
                             : std::span(offsets).subspan(
                                   static_cast<std::size_t>(part * groups.groups()), counts.size());
  };
  const auto group_of = [&](Index row) {
    return static_cast<std::size_t>(groups.locate(first_row + row).group);
  };
  for_dtype(dense.dtype, [&]<typename T>(T) {
    std::ranges::fill(counts, Index{0});
    if (parts > 1) {
      for_each_part(context, dense.rows, parts, [&](int part, IndexRange rows) {
        const std::span<Index> found = of_part(part);
        find_rows<T>(dense, rows, [&](Index row) { ++found[group_of(row)]; });
      });
      for (std::size_t group = 0; group < counts.size(); ++group) {
        Index begin = 0;
        for (int part = 0; part < parts; ++part) {
          begin += std::exchange(of_part(part)[group], begin);
        }
      }
    }
    for_each_part(context, dense.rows, parts, [&](int part, IndexRange rows) {
      const std::span<Index> next = of_part(part);
      find_rows<T>(dense, rows, [&](Index row) {
        const std::size_t group = group_of(row);
        const Index place = next[group]++;
        if (place >= room) return;
        const Index at = static_cast<Index>(group) * room + place;
        indices[static_cast<std::size_t>(at)] = first_row + row;
        copy_row(values.data + at * row_bytes, dense.data + row * row_bytes, row_bytes);
      });
    });
  });
}

}  // namespace sparsesync::cpu
