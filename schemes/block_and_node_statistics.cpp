// Statistics of what some schemes make of rows: blocks, and the unions of nodes.
#include <algorithm>

#include "schemes/push_pull/block_space.h"
#include "schemes/statistics.h"
#include "schemes/two_level/nodes.h"

namespace sparsesync {

SpaceStatistics statistics_of(const IndexSets& sets, const RowSpace& space,
                              const SchemeOptions& options) {
  SpaceStatistics statistics = statistics_of(sets, space.rows);
  if (options.block > 0) {
    statistics.blocks.push_back(statistics_of(views_of(block_sets(sets, space, options.block)),
                                              block_space(space, options.block).rows));
  }
  const auto workers = static_cast<int>(sets.size());
  const int per_node = options.workers_per_node;
  if (per_node > 1 && per_node < workers && workers % per_node == 0) {
    const Nodes nodes(workers, per_node);
    SchemeOptions in_node = options;
    in_node.workers_per_node = 0;
    for (int place = 0; place < per_node; ++place) {
      const IndexRange range = nodes.range(space.rows, place);
      const RowSpace of_range{space.dtype, space.width, std::max<Index>(1, range.size()), {}};
      statistics.nodes.push_back(
          statistics_of(views_of(node_sets(sets, nodes, range)), of_range, in_node));
    }
  }
  return statistics;
}

}  // namespace sparsesync
