// Which rows each worker touched, in the host's memory: what statistics and exact accounts are made
// from.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// The rows that each worker touched in one row space: increasing, one set for each worker.
using IndexSets = std::vector<std::span<const Index>>;

/// Index sets that own their rows.
using OwnedIndexSets = std::vector<std::vector<Index>>;
/// Views of them.
IndexSets views_of(const OwnedIndexSets& sets);

/// Those of an increasing set that lie in a range.
std::span<const Index> indices_in(std::span<const Index> set, IndexRange range);

/// The rows of all sets, increasing, repeats among them.
std::vector<Index> sorted_rows(const IndexSets& sets);

/// The union of increasing sets, increasing.
std::vector<Index> united_rows(const IndexSets& sets);

}  // namespace sparsesync
