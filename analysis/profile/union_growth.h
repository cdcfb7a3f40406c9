// How the union of workers' rows grows with their number: as it is known from a trace, and beyond.
#pragma once

#include <cstdint>

#include "analysis/profile/touch_histogram.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Rows, by how many of some samples touched them. A sample is what one worker touched in a step.
struct SampledRows {
  CountsOfCounts counts;
  std::int64_t samples = 1;
};

/// Rows that a number of workers touch together in a step.
///
/// Up to the n workers that a trace has: the mean over its steps and over all choices of so many of
/// them, exactly (rarefaction; Hurlbert, "The nonconcept of species diversity", 1971): a row that c
/// of N samples touched is in a choice of k with probability 1 - C(N - c, k) / C(N, k). Beyond, it
/// grows as the union of more samples does, of whatever steps: those of all N = n · steps by the
/// same formula, and beyond N so that ln V, V = -rows · ln(1 - U / rows), is a parabola of ln k
/// through N / 4, N / 2 and N, whose slope is kept within [0, 1] on the way: -ln of a mean of
/// powers (1 - p)^k is concave in k. U never exceeds the rows that there are.
class UnionGrowth {
 public:
  /// @param rows        of the tensor
  /// @param in_steps    of each step the n samples, the counts of all steps together
  /// @param steps       as many
  /// @param over_steps  all n · steps samples as one
  UnionGrowth(Index rows, SampledRows in_steps, int steps, SampledRows over_steps);

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
