// Growth of the union of workers' rows with their number: measured by a trace, and extrapolated.
#pragma once

#include <cstdint>

#include "analysis/profile/touch_histogram.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Row counts by the number of samples that touched the row. A sample is the set of rows that one
/// worker touched in one step.
struct SampledRows {
  CountsOfCounts counts;
  std::int64_t samples = 1;
};

/// Predicts the number of rows that a number of workers touch together in a step.
///
/// Up to the trace's n workers, the result is exact: the mean over the steps, and over all choices
/// of k workers. A row that c of N samples touched is in a choice of k with probability
/// 1 - C(N - c, k) / C(N, k). This is rarefaction (Hurlbert, "The nonconcept of species diversity",
/// 1971).
///
/// Beyond n workers, the union grows like the union of more samples from any steps. Up to all
/// N = n · steps samples, the same formula applies. Beyond N, the union U is extrapolated through
/// V = -rows · ln(1 - U / rows): ln V is a parabola of ln k through N / 4, N / 2 and N. Its slope
/// is kept within [0, 1], because -ln of a mean of powers (1 - p)^k is concave in k. U never
/// exceeds the number of rows.
class UnionGrowth {
 public:
  /// @param rows        rows of the tensor
  /// @param in_steps    n samples per step; counts within each step, summed over the steps
  /// @param steps       number of steps
  /// @param over_steps  n · steps samples; counts over all steps together
  UnionGrowth(Index rows, SampledRows in_steps, int steps, SampledRows over_steps);

  /// Returns the expected number of rows in the union.
  /// @param workers  1 or more
  double united(double workers) const;

 private:
  double over_steps(double samples) const;

  double rows_;
  SampledRows in_steps_;
  double steps_;
  SampledRows over_steps_;
};

}  // namespace sparsesync
