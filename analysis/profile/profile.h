// The profile of a trace: density, overlap between workers, and skewness of its gradients
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

/// A mean, with the smallest and the largest number.
struct Spread {
  double mean = 0;
  double min = 0;
  double max = 0;
};

/// The distribution of the overlap of two workers' rows, over pairs of workers and over steps. The
/// overlap is |A ∩ B| / min(|A|, |B|), or 0 if a set is empty.
struct OverlapDistribution {
  static constexpr int kBins = 20;
  double mean = 0;
  double stdev = 0;
  std::array<std::int64_t, kBins> histogram{};  // even bins of [0, 1]; the last includes 1
  std::int64_t pairs = 0;
};

/// The measures of one tensor. Unless stated otherwise, a mean is over workers and steps.
struct TensorProfile {
  Spread row_density;                       // touched rows / rows
  double density = 0;                       // non-zero elements / elements, mean
  std::vector<double> row_density_of_step;  // mean over workers
  OverlapDistribution overlap;
  // {k, mean density of the union of aligned groups of k workers / row_density.mean}. k is the
  // powers of two below the number of workers, and that number. 1 if no row is touched.
  std::vector<std::pair<int, double>> densification;
  // {p, density of the densest of p even ranges / density of all rows}: mean over the workers that
  // touched a row; 1 if no worker did.
  std::vector<std::pair<int, double>> skewness;
  // {block size in elements, blocks that overlap a touched row / blocks, mean}
  std::vector<std::pair<Index, double>> blocks;
  std::vector<CountedRow> hot_rows;  // rows with the most touches
  std::int64_t touches = 0;          // total of all rows; a touch is one worker in one step

  std::vector<double> drift;    // [step]: 1 - overlap of its union with that of step 0
  std::optional<ZipfLaw> zipf;  // nothing if the touches do not determine it

  // {touches, rows with at least that many, and fewer than the next entry's}: 0, 1, 2, 4, 8, ...
  std::vector<std::pair<std::int64_t, std::int64_t>> touch_histogram;

  /// Returns a row's share of all touches.
  double share_of(const CountedRow& row) const {
    return static_cast<double>(row.touches) / static_cast<double>(touches);
  }
};

/// The settings of a profile.
struct ProfileOptions {
  std::vector<int> partitions = {8, 16, 64, 128};
  std::vector<Index> blocks = {16, 64, 256, 1024, 4096};  // elements
  std::size_t hot_rows = 20;
  int threads = 1;
  std::function<void(std::int64_t done, std::int64_t total)> progress = [](auto, auto) {};
};

/// Maximum number of workers to compare pair by pair. Of more workers, this many evenly spaced ones
/// are compared.
inline constexpr int kMaxPairedWorkers = 256;

/// Profiles a trace. Reads every file once, step by step. Memory grows with the rows of one step
/// and with the number of distinct touched rows; each step adds only a few numbers. The result does
/// not depend on the number of threads.
/// @return one for each tensor
/// @throws InputError if a file of the trace is not what its header says
std::vector<TensorProfile> profile(const Trace& trace, const ProfileOptions& options);

}  // namespace sparsesync
