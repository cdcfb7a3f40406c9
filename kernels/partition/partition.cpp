// CPU implementations of partition() and its inverse.
#include "kernels/partition/partition.h"

#include <algorithm>

#include "kernels/base/threads.h"
#include "kernels/indices/radix_sort.h"
#include "kernels/partition/split_row_groups.h"
#include "kernels/rows/rows.h"

namespace sparsesync::cpu {
namespace {

/// Rows that keep a thread busy for much longer than waking it takes.
constexpr Index kGrain = Index{1} << 14;

}  // namespace

void partition(const Context& context, const RowGroups& groups, std::span<const Index> rows,
               std::span<Index> positions, std::span<Index> sources, std::span<Index> group_begin,
               SortWorkspace& workspace) {
  SPARSESYNC_EXPECT(std::ssize(group_begin), ==, groups.groups() + 1);
  SPARSESYNC_EXPECT(positions.size(), ==, rows.size());
  SPARSESYNC_EXPECT(sources.size(), ==, rows.size());
  const auto size = std::ssize(rows);
  const int bits = key_bits(groups);
  if (bits + place_bits(rows.size()) <= 64) {
    parallel_for(context, size, kGrain, [&](IndexRange range) {
      pack_places(groups, rows, range, place_bits(rows.size()), words_of(positions));
    });
    sort_packed(context, positions, sources, bits, workspace);
  } else {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      positions[i] = static_cast<Index>(key_of(groups, groups.locate(rows[i])));
    }
    sort_with_order(context, positions, sources, Index{1} << static_cast<unsigned>(bits),
                    workspace);
  }
  // The keys increase, so each group is contiguous. Subtract the group from its keys.
  auto begin = positions.begin();
  for (Index group = 0; group < groups.groups(); ++group) {
    const auto first_key = static_cast<Index>(key_of(groups, {group, 0}));
    const auto end = std::lower_bound(begin, positions.end(), first_key + groups.universe());
    group_begin[static_cast<std::size_t>(group)] = begin - positions.begin();
    for (; begin != end; ++begin) *begin -= first_key;
  }
  group_begin.back() = size;
}

void rows_at(const Context& context, const RowGroups& groups, Index group,
             std::span<const Index> positions, std::span<Index> rows) {
  SPARSESYNC_EXPECT(positions.size(), ==, rows.size());
  // Compare as unsigned numbers, so that a negative position is too large.
  const auto held = static_cast<std::uint64_t>(groups.size(group));
  parallel_for(context, std::ssize(rows), kGrain, [&](IndexRange range) {
    const std::span<const Index> part = part_of(positions, range);
    bool all_held = true;
    for (const Index position : part) {
      all_held &= static_cast<std::uint64_t>(position) < held;
    }
    if (!all_held) throw CorruptDataError("a position holds no row");
    unpack_rows(groups, group, part, rows.data() + range.begin);
  });
}

void rows_at_all(const Context& context, const RowGroups& groups,
                 std::span<const PositionsJob> jobs) {
  for (const PositionsJob& job : jobs) {
    rows_at(context, groups, job.group, job.positions, job.rows);
  }
}

void find_groups(const Context& context, const RowGroups& groups, std::span<const Index> rows,
                 std::span<std::int32_t> groups_of) {
  SPARSESYNC_EXPECT(groups_of.size(), ==, rows.size());
  parallel_for(context, std::ssize(rows), kGrain, [&](IndexRange range) {
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end);
         ++i) {
      groups_of[i] = static_cast<std::int32_t>(groups.locate(rows[i]).group);
    }
  });
}

void divide_evenly(const Context& context, const EvenRanges& ranges, std::span<const Index> rows,
                   std::span<Index> indices, std::span<Index> range_begin) {
  SPARSESYNC_EXPECT(indices.size(), ==, rows.size());
  SPARSESYNC_EXPECT(std::ssize(range_begin), ==, ranges.parts() + 1);
  range_begin[0] = 0;
  auto begin = rows.begin();
  for (Index part = 0; part < ranges.parts(); ++part) {
    const IndexRange range = ranges.range(part);
    const auto end = std::lower_bound(begin, rows.end(), range.end);
    const IndexRange places{begin - rows.begin(), end - rows.begin()};
    shift(context, part_of(rows, places), -range.begin, part_of(indices, places));
    range_begin[static_cast<std::size_t>(part) + 1] = places.end;
    begin = end;
  }
}

}  // namespace sparsesync::cpu
