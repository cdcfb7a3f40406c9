// The blocks of a row space, as a row space whose rows they are: what block_ps moves.
#pragma once

#include "schemes/bucket.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// A row for each block of `block` elements; of fewer, where the row space has no more.
/// @param block  at least 1
RowSpace block_space(const RowSpace& space, Index block);

/// The blocks that rows lie in: increasing, one set for each set of rows.
/// @param sets  increasing rows of `space`
OwnedIndexSets block_sets(const IndexSets& sets, const RowSpace& space, Index block);

/// The sparsity of the blocks. Where nobody looked: as if rows lay anywhere, which says too much of
/// rows that lie together.
SpaceStatistics block_statistics(const RowSpace& space, Index block,
                                 const SpaceStatistics& statistics);

}  // namespace sparsesync
