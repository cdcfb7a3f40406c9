#include "analysis/profile/union_growth.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sparsesync {
namespace {

/// Returns ln C(n, k) for real numbers 0 <= k <= n. Not std::lgamma, which writes a global
/// variable.
double log_choose(double n, double k) {
  int sign = 0;
  return ::lgamma_r(n + 1, &sign) - ::lgamma_r(k + 1, &sign) - ::lgamma_r(n - k + 1, &sign);
}

/// Returns the number of rows that `chosen` of the samples touch, mean over all choices.
double rarefied(const SampledRows& sampled, double chosen) {
  const auto samples = static_cast<double>(sampled.samples);
  double united = 0;
  for (const auto& [times, rows] : sampled.counts) {
    const double others = samples - static_cast<double>(times);
    const double missed =
        others < chosen ? 0 : std::exp(log_choose(others, chosen) - log_choose(samples, chosen));
    united += static_cast<double>(rows) * (1 - missed);
  }
  return united;
}

/// Extrapolates the number of touched rows U to more samples than there are.
///
/// The extrapolation follows V = -rows · ln(1 - U / rows). V is nearly U if few of the rows are
/// touched. If all rows are equally likely, V is a straight line, however full the tensor is.
/// @param to  number of samples
double extrapolated(const SampledRows& sampled, double rows, double to) {
  const auto from = static_cast<double>(sampled.samples);
  const auto followed = [&](double samples) {
    return -rows * std::log1p(-rarefied(sampled, samples) / rows);
  };
  const double last = followed(from);
  if (last <= 0 || !std::isfinite(last)) return last > 0 ? rows : 0;
  // Slope of ln V over ln k in the middle of the last doubling, and in the doubling before it.
  const double slope = from < 2 ? 1 : std::log2(last / followed(from / 2));
  double bend = 0;  // change of the slope per doubling; never positive
  if (from >= 4) {
    bend = std::min(0.0, slope - std::log2(followed(from / 2) / followed(from / 4)));
  }
  const double doublings = std::log2(to / from);
  // The slope falls linearly, starting half a doubling before the last sample, until it is 0.
  const double at_first = std::clamp(slope + bend / 2, 0.0, 1.0);
  const double until = bend < 0 ? std::min(doublings, at_first / -bend) : doublings;
  const double risen = at_first * until + bend * until * until / 2;
  return -rows * std::expm1(-last * std::exp2(risen) / rows);
}

}  // namespace

UnionGrowth::UnionGrowth(Index rows, SampledRows in_steps, int steps, SampledRows over_steps)
    : rows_(static_cast<double>(rows)),
      in_steps_(std::move(in_steps)),
      steps_(steps),
      over_steps_(std::move(over_steps)) {}

double UnionGrowth::united(double workers) const {
  const auto known = static_cast<double>(in_steps_.samples);
  const double united = rarefied(in_steps_, std::min(workers, known)) / steps_;
  if (workers <= known || united <= 0) return united;
  return std::min(rows_, united * over_steps(workers) / over_steps(known));
}

double UnionGrowth::over_steps(double samples) const {
  return samples <= static_cast<double>(over_steps_.samples)
             ? rarefied(over_steps_, samples)
             : extrapolated(over_steps_, rows_, samples);
}

}  // namespace sparsesync
