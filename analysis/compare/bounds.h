// The two yardsticks that every scheme is held against: bytes that a perfect one would move
// (design: "Two yardsticks").
#pragma once

#include <span>

#include "kernels/base/views.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// log2 of the number of ways to choose `count` of `universe`: the entropy of an index set, in
/// bits.
/// @pre 0 <= count <= universe
double log2_choose(double universe, double count);

/// Bytes of the busiest worker, per direction, of one tensor: push and pull with perfect balance,
/// indices at entropy: (n-1)/n · [(k + |U|) · row bytes + (mean log2 C(R, nnz_i) + log2 C(R, |U|))
/// / 8]; 0 for one worker.
/// @param sets  the workers' index sets, in [0, rows)
double partitioned_ideal_bytes(Index rows, Index row_bytes, const IndexSets& sets);

/// Bytes of the mean worker, per direction, of one tensor, values alone: a row that t workers
/// touched takes at least t - 1 transfers to become one sum and n - 1 to be everywhere, which makes
/// (k + (n-2)/n · |U|) · row bytes; 0 for one worker.
/// @param sets  the workers' index sets
double lower_bound_bytes(Index row_bytes, const IndexSets& sets);

}  // namespace sparsesync
