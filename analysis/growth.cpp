#include "analysis/growth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace sparsesync {
namespace {

/// ln C(n, k), any real numbers 0 <= k <= n. std::lgamma writes a global.
double log_choose(double n, double k) {
  int sign = 0;
  return ::lgamma_r(n + 1, &sign) - ::lgamma_r(k + 1, &sign) - ::lgamma_r(n - k + 1, &sign);
}

}  // namespace

UnionGrowth::UnionGrowth(Index rows, CountsOfCounts counts, std::int64_t samples)
    : rows_(static_cast<double>(rows)),
      counts_(std::move(counts)),
      samples_(static_cast<double>(samples)) {}

double UnionGrowth::united(double workers) const {
  return workers <= samples_ ? rarefied(workers) : extrapolated(samples_, workers);
}

double UnionGrowth::rarefied(double workers) const {
  double united = 0;
  for (const auto& [times, rows] : counts_) {
    const double others = samples_ - static_cast<double>(times);
    const double missed =
        others < workers ? 0
                         : std::exp(log_choose(others, workers) - log_choose(samples_, workers));
    united += static_cast<double>(rows) * (1 - missed);
  }
  return united;
}

double UnionGrowth::extrapolated(double from, double to) const {
  const double last = rarefied(from);
  if (last <= 0 || from < 2) return std::min(rows_, last * to / from);
  // Slopes of ln U over ln k: in the middle of the last doubling, and of the one before it.
  const double slope = std::log2(last / rarefied(from / 2));
  double bend = 0;  // of the slope, in a doubling; never upwards
  if (from >= 4) bend = std::min(0.0, slope - std::log2(rarefied(from / 2) / rarefied(from / 4)));
  const double doublings = std::log2(to / from);
  // The slope falls in a straight line, from half a doubling behind, until it is 0.
  const double at_first = std::clamp(slope + bend / 2, 0.0, 1.0);
  const double until = bend < 0 ? std::min(doublings, at_first / -bend) : doublings;
  const double risen = at_first * until + bend * until * until / 2;
  return std::clamp(last * std::exp2(risen), last, rows_);
}

double UnionGrowth::checked() const {
  double from = samples_ / 8;
  while (from < 4 && from < samples_) from *= 2;
  const double there = rarefied(samples_);
  return from < samples_ && there > 0 ? extrapolated(from, samples_) / there : 1;
}

}  // namespace sparsesync
