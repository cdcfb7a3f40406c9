// How the union of workers' rows grows with their number: as it is known from a trace, and beyond.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/touch_counts.h"
#include "kernels/views.h"

namespace sparsesync {

/// Rows that a number of workers touch together in a step.
///
/// Up to the workers' steps N that were seen: the mean over all choices of so many of them, exactly
/// (rarefaction; Hurlbert, "The nonconcept of species diversity", 1971): a row that c of N touched
/// is in a choice of k with probability 1 - C(N - c, k) / C(N, k). Steps count as further workers:
/// a batch is a batch, whoever has it. Beyond N: ln U is a parabola of ln k through N / 4, N / 2
/// and N, whose slope is kept within [0, 1] on the way, and U never exceeds the rows that there
/// are.
class UnionGrowth {
 public:
  /// @param rows     of the tensor
  /// @param counts   of the rows that were touched
  /// @param samples  N: workers times steps
  UnionGrowth(Index rows, CountsOfCounts counts, std::int64_t samples);

  /// @param workers  1 or more
  double united(double workers) const;
  /// Those that are known, and not extrapolated: N.
  double known() const { return samples_; }
  /// What the same parabola says of `known()` workers, from an eighth of them and the quarters of
  /// that, over what they touch: the fit's error over as many doublings as can be checked, at most
  /// three. 1 where there is nothing to check it by.
  double checked() const;

 private:
  double rarefied(double workers) const;
  double extrapolated(double from, double to) const;

  double rows_;
  CountsOfCounts counts_;
  double samples_;
};

}  // namespace sparsesync
