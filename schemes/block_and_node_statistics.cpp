// Statistics of derived row spaces: blocks, and nodes.
#include <algorithm>
#include <cmath>

#include "kernels/base/bits.h"
#include "schemes/statistics.h"
#include "schemes/two_level/nodes.h"

namespace sparsesync {

RowSpace block_space(const RowSpace& space, Index block) {
  const Index width = std::min(block, space.elements());
  const Index blocks = ceil_div(space.elements(), width);
  return {space.dtype, width, blocks, {}};
}

OwnedIndexSets block_sets(const IndexSets& sets, const RowSpace& space, Index block) {
  const Index elements = block_space(space, block).width;
  OwnedIndexSets all;
  for (const std::span<const Index> rows : sets) {
    std::vector<Index>& blocks = all.emplace_back();
    for (const Index row : rows) {
      const Index last = ((row + 1) * space.width - 1) / elements;
      for (Index i = row * space.width / elements; i <= last; ++i) {
        if (blocks.empty() || blocks.back() < i) blocks.push_back(i);
      }
    }
  }
  return all;
}

SpaceStatistics block_statistics(const RowSpace& space, Index block,
                                 const SpaceStatistics& statistics) {
  if (!statistics.blocks.empty()) return statistics.blocks.front();
  const RowSpace blocks = block_space(space, block);
  // Mean number of rows that overlap with a block.
  const Index wide = std::max(space.width, blocks.width);
  const Index narrow = std::min(space.width, blocks.width);
  const auto width = static_cast<double>(space.width);
  const double rows = wide % narrow == 0 ? std::max(1.0, static_cast<double>(blocks.width) / width)
                                         : 1 + static_cast<double>(blocks.width - 1) / width;
  const auto touched = [&](double number) {
    const double density = std::min(1.0, number / static_cast<double>(space.rows));
    return static_cast<double>(blocks.rows) * (1 - std::pow(1 - density, rows));
  };
  return {touched(statistics.touched_mean), touched(statistics.touched_max),
          touched(statistics.united), statistics.push_skewness, statistics.pull_skewness};
}

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
