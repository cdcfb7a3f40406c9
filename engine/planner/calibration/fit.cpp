#include "engine/planner/calibration/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/bits.h"
#include "kernels/base/error.h"

namespace sparsesync {
namespace {

/// Times by message size.
using Samples = std::map<double, std::vector<double>>;
/// Samples of each pass.
using Passes = std::vector<Samples>;

/// Merges the samples of some passes. A pass may be listed more than once.
Samples together(const Passes& passes, std::span<const std::size_t> which) {
  Samples all;
  for (const std::size_t pass : which) {
    for (const auto& [bytes, times] : passes[pass]) {
      std::vector<double>& of_size = all[bytes];
      of_size.insert(of_size.end(), times.begin(), times.end());
    }
  }
  return all;
}

struct Line {
  double seconds = 0;   // for 0 bytes
  double per_byte = 0;  // above 0
};

/// Minimizes the squares of (seconds + per_byte · bytes - T) / T, where T is the median of a size.
std::optional<Line> fitted(const Samples& samples) {
  double uu = 0;
  double uv = 0;
  double vv = 0;
  double u_sum = 0;
  double v_sum = 0;
  for (const auto& [bytes, times] : samples) {
    const double middle = median(times);
    const double u = 1 / middle;
    const double v = bytes / middle;
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u_sum += u;
    v_sum += v;
  }
  const double determinant = uu * vv - uv * uv;
  Line line{(u_sum * vv - v_sum * uv) / determinant, (uu * v_sum - uv * u_sum) / determinant};
  if (line.seconds < 0) line = {0, v_sum / vv};
  const bool good = std::isfinite(line.seconds) && std::isfinite(line.per_byte);
  return good && line.per_byte > 0 ? std::optional(line) : std::nullopt;
}

/// Returns the fraction of bootstrap samples to cut at each end for an interval with 95%
/// confidence. Samples of few blocks vary less than the population, so the fraction is then less
/// than 2.5%. This is the expanded percentile interval (Hesterberg, "What teachers should know
/// about the bootstrap", 2015).
double share_outside(std::size_t blocks) {
  if (blocks < 2) return 0;
  constexpr double kNormal = 1.959964;
  constexpr double kCube = kNormal * kNormal * kNormal;
  constexpr double kFifth = kCube * kNormal * kNormal;
  const auto freedom = static_cast<double>(blocks - 1);
  // Student's t quantile, by the Cornish-Fisher expansion.
  const double student = kNormal + (kCube + kNormal) / (4 * freedom) +
                         (5 * kFifth + 16 * kCube + 3 * kNormal) / (96 * freedom * freedom);
  const double stretched = student * std::sqrt(static_cast<double>(blocks) / freedom);
  return std::erfc(stretched / std::numbers::sqrt2) / 2;
}

/// Returns the interval of all numbers except a fraction at each end, extended to `found`.
Interval middle_of(std::vector<double> numbers, double outside, double found) {
  std::sort(numbers.begin(), numbers.end());
  const auto at = [&](double share) {
    return numbers[static_cast<std::size_t>(share * static_cast<double>(numbers.size() - 1))];
  };
  return {std::min(at(outside), found), std::max(at(1 - outside), found)};
}

constexpr std::size_t kCosts = kHostCosts.size();
using CostVector = std::array<double, kCosts>;

/// Returns the non-negative x that minimizes x·A·x / 2 - b·x. Elements with a zero on A's diagonal
/// are 0. Coordinate descent sets one element after another to its best value, given the others,
/// until none changes. With non-negative elements it converges to the only minimum (Franc, Hlaváč,
/// Navara, "Sequential coordinate-wise algorithm for the non-negative least squares problem",
/// 2005).
CostVector non_negative_least_squares(const std::array<CostVector, kCosts>& a,
                                      const CostVector& b) {
  constexpr int kMostTurns = 100'000;
  constexpr double kEnough = 1e-9;
  CostVector x{};
  double moved = 1;
  for (int turn = 0; turn < kMostTurns && moved > kEnough; ++turn) {
    moved = 0;
    for (std::size_t i = 0; i < kCosts; ++i) {
      if (a[i][i] == 0) continue;
      double slope = -b[i];
      for (std::size_t j = 0; j < kCosts; ++j) slope += a[i][j] * x[j];
      const double before = std::exchange(x[i], std::max(0.0, x[i] - slope / a[i][i]));
      moved = std::max(moved, std::abs(x[i] - before));
    }
  }
  return x;
}

}  // namespace

FittedLink fit_link(std::span<const TimedTransfer> samples) {
  std::map<int, Samples> by_pass;
  for (const TimedTransfer& sample : samples) {
    if (!(sample.bytes >= 0 && sample.seconds > 0 && std::isfinite(sample.bytes) &&
          std::isfinite(sample.seconds))) {
      throw InputError(fmt::format("a transfer of {} bytes in {} s: measure it again", sample.bytes,
                                   sample.seconds));
    }
    by_pass[sample.pass][sample.bytes].push_back(sample.seconds);
  }
  Passes passes;
  for (auto& [pass, of_pass] : by_pass) passes.push_back(std::move(of_pass));
  std::vector<std::size_t> which(passes.size());
  std::iota(which.begin(), which.end(), 0U);
  const Samples by_size = together(passes, which);
  if (by_size.size() < 2) {
    throw InputError(fmt::format(
        "transfers of {} size{}, but a fit needs at least two: measure messages of several sizes",
        by_size.size(), by_size.size() == 1 ? "" : "s"));
  }
  const std::optional<Line> line = fitted(by_size);
  if (!line) {
    throw Error(
        "more bytes take no longer: this machine is too busy for a measurement, or its messages "
        "too small; repeat it");
  }
  constexpr std::uint64_t kDraws = 1000;
  std::vector<double> latencies{line->seconds};
  std::vector<double> rates{8 / line->per_byte};
  std::uint64_t drawn = 0;
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    for (std::size_t& pass : which) pass = static_cast<std::size_t>(mix64(drawn++) % passes.size());
    const Samples again = together(passes, which);
    // If passes lack sizes, a bootstrap sample may have too few sizes.
    if (again.size() < 2) continue;
    if (const std::optional<Line> other = fitted(again)) {
      latencies.push_back(other->seconds);
      rates.push_back(8 / other->per_byte);
    }
  }
  const double outside = share_outside(passes.size());
  return {line->seconds, 8 / line->per_byte, middle_of(latencies, outside, line->seconds),
          middle_of(rates, outside, 8 / line->per_byte)};
}

HostCosts fit_host(std::span<const TimedWork> samples) {
  if (samples.empty()) throw InputError("no step was timed: time at least one step");
  // Normal equations. A row has the work of each cost per second of a sample, scaled to similar
  // magnitudes.
  std::array<CostVector, kCosts> products{};
  CostVector sums{};
  CostVector scales{};
  const auto share = [&](const TimedWork& sample, std::size_t cost) {
    return sample.work.*kHostCosts[cost].amount / sample.seconds;
  };
  for (const TimedWork& sample : samples) {
    if (!(sample.seconds > 0) || !std::isfinite(sample.seconds)) {
      throw InputError(fmt::format("a step of {} s: time it again", sample.seconds));
    }
    for (std::size_t i = 0; i < kCosts; ++i) {
      scales[i] = std::max(scales[i], share(sample, i));
    }
  }
  for (const TimedWork& sample : samples) {
    for (std::size_t i = 0; i < kCosts; ++i) {
      if (scales[i] == 0) continue;
      const double own = share(sample, i) / scales[i];
      sums[i] += own;
      for (std::size_t j = 0; j < kCosts; ++j) {
        if (scales[j] > 0) products[i][j] += own * share(sample, j) / scales[j];
      }
    }
  }
  const CostVector costs = non_negative_least_squares(products, sums);
  HostCosts host;
  for (std::size_t i = 0; i < kCosts; ++i) {
    if (scales[i] > 0) host.*kHostCosts[i].seconds = costs[i] / scales[i];
  }
  return host;
}

}  // namespace sparsesync
