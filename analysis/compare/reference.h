// References of a run: the exact sum of all workers' gradients, made from a trace's files and never
// from the network, and lower bounds of the bytes that a scheme sends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/trace/trace.h"
#include "kernels/base/views.h"
#include "schemes/statistics.h"

namespace sparsesync {

/// The sum of one tensor at one step, kept sparse: a row for each index that some worker has.
struct ReferenceSum {
  DType dtype = DType::f32;
  Index width = 0;
  std::vector<Index> indices;  // increasing
  // indices.size() × width of either kind, the other one empty.
  std::vector<double> sums;             // of floating-point values
  std::vector<double> magnitudes;       // the sums of their absolute values: what bounds errors
  std::vector<std::uint64_t> integers;  // sums of integers, modulo 2^64
  std::int64_t most_terms = 0;          // added to one row, repeats counted
  bool exact = false;  // whether every order of summation gives the very same numbers
  int workers = 1;
  std::optional<DType> wire;  // what values crossed as, where not as their own type
};

/// What all workers' gradients of a step sum up to. Integers and made values (whole numbers) are
/// exact; recorded ones of a floating-point type are held to the bound of summing.
/// @param wire  what values cross as, where not as their own type
/// @return one sum for each tensor
/// @throws InputError as Trace::load()
std::vector<ReferenceSum> reference_sums(const Trace& trace, int step,
                                         std::optional<DType> wire = std::nullopt);

/// The first element in which a result differs from the reference, in words. An element may be off
/// by u · terms · Σ|x|, u being the unit roundoff of the sums, and by two roundings of the element
/// type where that is narrower; in f64 by twice the terms, the reference being summed in f64 too.
/// Where n workers' values crossed as a narrower type of unit roundoff w it may be off by w · (n +
/// 1) · Σ|x|: each of n partial sums is rounded once at most, and the sum once more. Exact sums may
/// not be off at all; integers are compared as they wrap. Where Σ|x| overflows the element type,
/// infinities and NaN are right too. NaN equals NaN. Rows that are in only one of the two must be
/// zero.
/// @param indices  increasing, else that is the difference
/// @param values   a row for each index
/// @return nothing if no element differs
std::optional<std::string> difference_from(const ReferenceSum& reference,
                                           std::span<const Index> indices, ConstMatrix values);

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
