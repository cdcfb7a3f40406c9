// Index sets drawn at random.
#pragma once

#include "schemes/statistics.h"
#include "tests/support/random.h"

namespace sparsesync::testing {

/// For each worker `touched` distinct rows, or up to a tenth more.
inline OwnedIndexSets random_sets(Random& random, Index rows, int size, Index touched) {
  OwnedIndexSets sets;
  for (int worker = 0; worker < size; ++worker) {
    sets.push_back(distinct_rows(random, rows, touched + random.below(touched / 10 + 1)));
  }
  return sets;
}

}  // namespace sparsesync::testing
