// CPU bodies of partition and its inverse.
#include "kernels/partition.h"

#include <algorithm>
#include <numeric>

namespace sparsesync::cpu {

void partition(const Context& context, const RowGroups& groups, std::span<const Index> rows,
               std::span<Index> positions, std::span<Index> sources, std::span<Index> group_begin,
               SortWorkspace& workspace) {
  SPARSESYNC_EXPECT(static_cast<Index>(group_begin.size()), ==, groups.groups() + 1);
  const Index universe = groups.universe();
  std::fill(group_begin.begin(), group_begin.end(), Index{0});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowGroups::Place place = groups.place(rows[i]);
    positions[i] = place.group * universe + place.position;
    ++group_begin[static_cast<std::size_t>(place.group) + 1];
  }
  std::iota(sources.begin(), sources.end(), Index{0});
  sort_pairs(context, positions, sources, universe * groups.groups(), workspace);
  std::partial_sum(group_begin.begin(), group_begin.end(), group_begin.begin());
  for (Index group = 0; group < groups.groups(); ++group) {
    const auto begin = static_cast<std::size_t>(group_begin[static_cast<std::size_t>(group)]);
    const auto end = static_cast<std::size_t>(group_begin[static_cast<std::size_t>(group) + 1]);
    for (std::size_t i = begin; i < end; ++i) positions[i] -= group * universe;
  }
}

void rows_at(const Context&, const RowGroups& groups, Index group, std::span<const Index> positions,
             std::span<Index> rows) {
  SPARSESYNC_EXPECT(positions.size(), ==, rows.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const RowGroups::Place place{group, positions[i]};
    if (!groups.holds(place)) throw CorruptDataError("a position that holds no row");
    rows[i] = groups.row(place);
  }
}

void divide_evenly(const Context&, const EvenRanges& ranges, std::span<const Index> rows,
                   std::span<Index> range_begin) {
  SPARSESYNC_EXPECT(static_cast<Index>(range_begin.size()), ==, ranges.parts() + 1);
  range_begin[0] = 0;
  for (Index part = 0; part < ranges.parts(); ++part) {
    const auto end = std::lower_bound(rows.begin(), rows.end(), ranges.range(part).end);
    range_begin[static_cast<std::size_t>(part) + 1] = end - rows.begin();
  }
}

}  // namespace sparsesync::cpu
