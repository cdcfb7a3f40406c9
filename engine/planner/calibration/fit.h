// The α-β model of a link, fitted to transfers that were timed, and a processor's costs, fitted to
// steps that were.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "schemes/cost.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// A message's way, from the first byte sent to the last one received.
struct TimedTransfer {
  double bytes = 0;  // on the wire, headers among them
  double seconds = 0;
  int pass = 0;  // over all sizes: transfers of one share what the machine did meanwhile
};

/// Fits the line that is nearest to the median time of each size, in relative terms: a transfer of
/// a microsecond counts for as much as one of a second, so latency and rate are both well found.
/// A latency below 0 becomes 0. The intervals come from drawing the passes anew, 1,000 times (the
/// bootstrap, by blocks: Künsch, "The jackknife and the bootstrap for general stationary
/// observations", 1989); the same bits for the same samples.
/// @param samples  of two sizes at least, in any order; several passes make it robust, and of one
///                 alone the intervals are its own numbers
/// @throws InputError if a sample is not a time of some bytes, or all have one size
/// @throws Error if more bytes take no longer
FittedLink fit_link(std::span<const TimedTransfer> samples);

/// What one worker's processor did in a step, and how long it took.
struct TimedWork {
  Work work;
  double seconds = 0;  // of the processor
};

/// The costs, none below 0, that come nearest to all samples in relative terms (least squares of
/// predicted over measured seconds - 1). What no sample has done costs nothing.
/// @throws InputError if there is no sample, or one that took no time
HostCosts fit_host(std::span<const TimedWork> samples);

/// The middle number; of an even count the mean of the middle two.
/// @pre there is a number at least, and none is a NaN
inline double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const std::size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}

}  // namespace sparsesync
