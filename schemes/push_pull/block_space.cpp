#include "schemes/push_pull/block_space.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/bits.h"

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
  // Rows that reach into a block, as a mean over blocks.
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

}  // namespace sparsesync
