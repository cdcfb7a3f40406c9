// Reference values of a run: the exact sum of all workers' gradients, computed from the trace files
// alone, and lower bounds of the bytes that a scheme sends.
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

/// The sum of one tensor at one step, in sparse form: a row for each index that a worker touched.
struct ReferenceSum {
  DType dtype = DType::f32;
  Index width = 0;
  std::vector<Index> indices;  // increasing
  // Either the floating-point vectors or the integers have indices.size() × width elements; the
  // others are empty.
  std::vector<double> sums;             // sums of floating-point values
  std::vector<double> magnitudes;       // sums of absolute values, which bound the errors
  std::vector<std::uint64_t> integers;  // sums of integers, modulo 2^64

  std::int64_t most_terms = 0;  // largest number of terms of a row, repeats included
  bool exact = false;           // whether every order of summation gives identical numbers
  int workers = 1;
  std::optional<DType> wire;  // type in which values were sent; nothing: the tensor's dtype
};

/// Sums all workers' gradients of a step. The sums are exact for integers and for generated values,
/// which are whole numbers. For recorded floating-point values, difference_from() allows for
/// rounding errors.
/// @param wire  type in which values are sent; nothing: the tensor's dtype
/// @return one sum for each tensor
/// @throws InputError as Trace::load()
std::vector<ReferenceSum> reference_sums(const Trace& trace, int step,
                                         std::optional<DType> wire = std::nullopt);

/// Describes the first element in which a result differs from the reference.
///
/// The tolerance of an element is u · terms · Σ|x| with the unit roundoff u of the sums, plus two
/// roundings to the element type if that is narrower. In f64 the number of terms counts twice,
/// because the reference is summed in f64, too. If n workers send values in a narrower type with
/// unit roundoff w, the tolerance of the roundings is w · (n + 1) · Σ|x|. Each of n partial sums is
/// rounded at most once, and the total once more.
///
/// Exact sums have no tolerance. Integers are compared with wrap-around. If Σ|x| overflows the
/// element type, infinities and NaN are correct, too. NaN equals NaN. Rows that only one of the two
/// has must be zero.
/// @param indices  rows of the result; if they do not increase, that is the difference
/// @param values   a row for each index
/// @return nothing if no element differs
std::optional<std::string> difference_from(const ReferenceSum& reference,
                                           std::span<const Index> indices, ConstMatrix values);

/// Returns log2 of the binomial coefficient C(universe, count): the entropy of an index set, in
/// bits.
/// @pre 0 <= count <= universe
double log2_choose(double universe, double count);

/// Returns the partitioned ideal of one tensor: bytes of the busiest worker per direction, for a
/// push and a pull with perfect balance and indices at their entropy.
///
/// (n-1)/n · [(k + |U|) · row bytes + (mean log2 C(R, nnz_i) + log2 C(R, |U|)) / 8] with n workers,
/// k rows per worker (mean), the union U, and R rows. 0 for one worker.
/// @param sets  the workers' index sets, in [0, rows)
double partitioned_ideal_bytes(Index rows, Index row_bytes, const IndexSets& sets);

/// Returns a lower bound of one tensor: bytes of the mean worker per direction, for values alone.
///
/// A row that t workers touched takes at least t - 1 transfers to sum it, and n - 1 transfers to
/// reach all workers. That is (k + (n-2)/n · |U|) · row bytes. 0 for one worker.
/// @param sets  the workers' index sets
double lower_bound_bytes(Index row_bytes, const IndexSets& sets);

}  // namespace sparsesync
