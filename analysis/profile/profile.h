// The profile of a trace: how sparse its gradients are, how alike workers are, how skewed
// (docs/tools/profile.md; Zen, section 2).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/profile/touch_histogram.h"
#include "analysis/trace/trace.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// A mean, and between what it lies.
struct Spread {
  double mean = 0;
  double min = 0;
  double max = 0;
};

/// How much two workers' rows overlap, over pairs of workers and steps: |A and B| / min(|A|, |B|),
/// 0 where one of them is empty.
struct OverlapDistribution {
  static constexpr int kBins = 20;
  double mean = 0;
  double stdev = 0;
  std::array<std::int64_t, kBins> histogram{};  // of [0, 1], in even bins; the last has 1 too
  std::int64_t pairs = 0;
};

/// What was measured of one tensor, over workers and steps. Mean without another word: over both.
struct TensorProfile {
  Spread row_density;                       // touched rows / rows
  double density = 0;                       // elements that are not zero / elements, mean
  std::vector<double> row_density_of_step;  // mean over workers
  OverlapDistribution overlap;
  // {k, mean density of the union of aligned groups of k workers / row_density.mean}: for powers of
  // two up to the number of workers, and for that; 1 where no row is touched.
  std::vector<std::pair<int, double>> densification;
  // {p, density of the densest of p even ranges / the worker's own, mean over workers that touched
  // a row}; 1 where none did.
  std::vector<std::pair<int, double>> skewness;
  // {elements of a block, blocks that a touched row reaches into / blocks, mean}
  std::vector<std::pair<Index, double>> blocks;
  std::vector<CountedRow> hot_rows;  // the most touched ones, by worker and step
  std::int64_t touches = 0;          // of all rows: their share is of it
  std::vector<double> drift;         // of each step: 1 - the overlap of its union with the first's
  std::optional<ZipfLaw> zipf;       // nothing where it cannot be told
  // {touches, rows that so many workers' steps touched, up to the next entry's}: 0, 1, 2, 4, 8, ...
  std::vector<std::pair<std::int64_t, std::int64_t>> touch_histogram;

  /// Of all touches.
  double share_of(const CountedRow& row) const {
    return static_cast<double>(row.touches) / static_cast<double>(touches);
  }
};

/// How a trace is profiled.
struct ProfileOptions {
  std::vector<int> partitions = {8, 16, 64, 128};
  std::vector<Index> blocks = {16, 64, 256, 1024, 4096};  // elements
  std::size_t hot_rows = 20;
  int threads = 1;
  std::function<void(std::int64_t done, std::int64_t total)> progress = [](auto, auto) {};
};

/// The most workers whose overlap is looked at pair by pair: of more, so many that lie evenly among
/// them.
inline constexpr int kMaxPairedWorkers = 256;

/// Looks at every file of the trace once, step by step. Memory is for one step's rows and for the
/// rows that were touched, not for the number of steps, but for a few numbers of each. The same
/// result for any number of threads.
/// @return one for each tensor
/// @throws InputError if a file of the trace is not what its header says
std::vector<TensorProfile> profile(const Trace& trace, const ProfileOptions& options);

}  // namespace sparsesync
