#include "analysis/profile/union_growth.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sparsesync {
namespace {

/// ln C(n, k), any real numbers 0 <= k <= n. std::lgamma writes a global.
double log_choose(double n, double k) {
  int sign = 0;
  return ::lgamma_r(n + 1, &sign) - ::lgamma_r(k + 1, &sign) - ::lgamma_r(n - k + 1, &sign);
}

/// Rows that a choice of `chosen` of the samples touches, mean over all choices.
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

/// Rows that more samples than there are would touch of all `rows`. What is followed is V = -rows ·
/// ln(1 - U / rows): nearly U itself where few of the rows are touched, and for rows that are all
/// alike a straight line, however full.
double extrapolated(const SampledRows& sampled, double rows, double to) {
  const auto from = static_cast<double>(sampled.samples);
  const auto followed = [&](double samples) {
    return -rows * std::log1p(-rarefied(sampled, samples) / rows);
  };
  const double last = followed(from);
  if (last <= 0 || !std::isfinite(last)) return last > 0 ? rows : 0;
  // Slopes of ln V over ln k: in the middle of the last doubling, and of the one before it.
  const double slope = from < 2 ? 1 : std::log2(last / followed(from / 2));
  double bend = 0;  // of the slope, in a doubling; never upwards
  if (from >= 4) {
    bend = std::min(0.0, slope - std::log2(followed(from / 2) / followed(from / 4)));
  }
  const double doublings = std::log2(to / from);
  // The slope falls in a straight line, from half a doubling behind, until it is 0.
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
