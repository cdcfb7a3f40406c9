#include "analysis/growth.h"

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

/// Rows that more samples than there are would touch: a parabola in logarithms.
double extrapolated(const SampledRows& sampled, double to) {
  const auto from = static_cast<double>(sampled.samples);
  const double last = rarefied(sampled, from);
  if (last <= 0 || from < 2) return last * to / from;
  // Slopes of ln U over ln k: in the middle of the last doubling, and of the one before it.
  const double slope = std::log2(last / rarefied(sampled, from / 2));
  double bend = 0;  // of the slope, in a doubling; never upwards
  if (from >= 4) {
    const double before = std::log2(rarefied(sampled, from / 2) / rarefied(sampled, from / 4));
    bend = std::min(0.0, slope - before);
  }
  const double doublings = std::log2(to / from);
  // The slope falls in a straight line, from half a doubling behind, until it is 0.
  const double at_first = std::clamp(slope + bend / 2, 0.0, 1.0);
  const double until = bend < 0 ? std::min(doublings, at_first / -bend) : doublings;
  const double risen = at_first * until + bend * until * until / 2;
  return last * std::exp2(risen);
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
  return samples <= static_cast<double>(over_steps_.samples) ? rarefied(over_steps_, samples)
                                                             : extrapolated(over_steps_, samples);
}

}  // namespace sparsesync
