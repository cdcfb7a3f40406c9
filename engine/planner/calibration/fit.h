// Fits the α-β model of a link to timed transfers, and CPU costs to timed steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "schemes/cost.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// A timed message, from the first sent byte to the last received one.
struct TimedTransfer {
  double bytes = 0;  // on the wire, with headers
  double seconds = 0;
  int pass = 0;  // pass over all sizes; disturbances affect whole passes
};

/// Fits a line to the median time of each size, by least squares of relative errors. A transfer of
/// a microsecond thus has the same weight as one of a second, so both latency and rate are
/// accurate. A negative latency becomes 0.
///
/// Confidence intervals come from 1,000 bootstrap samples of whole passes (Künsch, "The jackknife
/// and the bootstrap for general stationary observations", 1989). The same samples give the same
/// bits.
/// @param samples  at least two sizes, in any order. Several passes make the fit robust; with a
///                 single pass, intervals have no width
/// @throws InputError if a sample is not valid, or all samples have the same size
/// @throws Error if larger messages do not take longer
FittedLink fit_link(std::span<const TimedTransfer> samples);

/// CPU work of one worker in a step, and its duration.
struct TimedWork {
  Work work;
  double seconds = 0;  // CPU time
};

/// Fits non-negative costs to all samples, by least squares of predicted over measured seconds - 1.
/// Work that no sample contains costs 0.
/// @throws InputError if there is no sample, or one with a time that is not positive
HostCosts fit_host(std::span<const TimedWork> samples);

/// Returns the median; for an even count, the mean of the middle two numbers.
/// @pre there is at least one number, and none is a NaN
inline double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const std::size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}

}  // namespace sparsesync
