// CPU implementations of the locate operations.
#include "kernels/indices/locate.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsesync::cpu {

void locate(const Context&, std::span<const Index> indices, IndexRange range,
            std::span<Index> bounds) {
  const auto begin = std::lower_bound(indices.begin(), indices.end(), range.begin);
  bounds[0] = begin - indices.begin();
  bounds[1] = std::lower_bound(begin, indices.end(), range.end) - indices.begin();
}

void locate_in_groups(const Context& context, std::span<const Index> indices,
                      std::span<const Index> group_begin, IndexRange range,
                      std::span<Index> bounds) {
  SPARSESYNC_EXPECT(bounds.size(), ==, 2 * (group_begin.size() - 1));
  for (std::size_t group = 0; group + 1 < group_begin.size(); ++group) {
    const auto begin = static_cast<std::size_t>(group_begin[group]);
    const auto end = static_cast<std::size_t>(group_begin[group + 1]);
    const std::span<Index> of_group = bounds.subspan(2 * group, 2);
    locate(context, indices.subspan(begin, end - begin), range, of_group);
    for (Index& bound : of_group) bound += group_begin[group];
  }
}

}  // namespace sparsesync::cpu
