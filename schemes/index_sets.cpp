#include "schemes/index_sets.h"

#include <algorithm>

namespace sparsesync {

IndexSets views_of(const OwnedIndexSets& sets) {
  return {sets.begin(), sets.end()};
}

std::span<const Index> indices_in(std::span<const Index> set, IndexRange range) {
  const auto begin = std::lower_bound(set.begin(), set.end(), range.begin);
  const auto end = std::lower_bound(begin, set.end(), range.end);
  return {begin, end};
}

std::vector<Index> sorted_rows(const IndexSets& sets) {
  std::vector<Index> all;
  for (const std::span<const Index> set : sets) all.insert(all.end(), set.begin(), set.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<Index> united_rows(const IndexSets& sets) {
  std::vector<Index> all = sorted_rows(sets);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace sparsesync
