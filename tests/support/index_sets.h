// Random index sets.
#pragma once

#include "schemes/statistics.h"
#include "tests/support/random.h"

namespace sparsesync::testing {

/// Draws between `touched` and 1.1 times as many distinct rows for each worker.
inline OwnedIndexSets random_sets(Random& random, Index rows, int size, Index touched) {
  OwnedIndexSets sets;
  for (int worker = 0; worker < size; ++worker) {
    sets.push_back(distinct_rows(random, rows, touched + random.below(touched / 10 + 1)));
  }
  return sets;
}

}  // namespace sparsesync::testing
