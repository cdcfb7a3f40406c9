// Zipf's law of how rows are touched, fitted.
#pragma once

#include <cstdint>
#include <optional>

#include "analysis/profile/touch_histogram.h"
#include "kernels/base/views.h"
#include "sparsesync/network_file.h"

namespace sparsesync {

/// The law that row number r by frequency (1, 2, ..., rows) is drawn r^-s as often as the first: in
/// one worker's step it is touched with probability p(r) = 1 - exp(-scale · r^-s).
struct ZipfLaw {
  double s = 0;
  Interval ci;  // of s, 95%
};

/// The law that makes what was seen most likely. A row touched c times of N is one of all rows, and
/// no order is taken from the counts themselves: its probability is the mean over r of the binomial
/// C(N, c) p(r)^c (1 - p(r))^(N - c). `scale` is, for each s, that with which as many touches are
/// expected as were seen; s has the largest likelihood then, and its interval is where the
/// likelihood's ratio to it says so (Wilks; docs/measures.md).
/// @param rows     of the tensor, touched or not
/// @param counts   of those that were touched
/// @param samples  N: workers times steps
/// @return nothing where s is open: where fewer than two rows were touched, or all of them each
///         time, or the likelihood has no peak
std::optional<ZipfLaw> fit_zipf(Index rows, const CountsOfCounts& counts, std::int64_t samples);

}  // namespace sparsesync
