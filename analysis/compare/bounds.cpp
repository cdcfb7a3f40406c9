#include "analysis/compare/reference.h"

#include <cmath>
#include <numbers>

namespace sparsesync {
namespace {

double mean_touched(const IndexSets& sets) {
  double touched = 0;
  for (const std::span<const Index> set : sets) touched += static_cast<double>(set.size());
  return touched / static_cast<double>(sets.size());
}

/// Returns ln Γ(x), x > 0. Not std::lgamma, which writes a global variable.
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

/// Returns ln(universe · (universe - 1) · ... · (universe - count + 1)) without the cancellation
/// that a difference of lgamma suffers for a large universe.
double log_falling(double universe, double count) {
  // Stirling's series of lgamma(universe + 1) - lgamma(universe - count + 1), with paired terms.
  const double rest = universe - count;
  if (rest < 1e6) return log_gamma(universe + 1) - log_gamma(rest + 1);
  return (rest + 0.5) * std::log1p(count / rest) + count * (std::log(universe) - 1) +
         (1 / universe - 1 / rest) / 12;
}

}  // namespace

double log2_choose(double universe, double count) {
  return (log_falling(universe, count) - log_gamma(count + 1)) / std::numbers::ln2;
}

double partitioned_ideal_bytes(Index rows, Index row_bytes, const IndexSets& sets) {
  const auto n = static_cast<double>(sets.size());
  const auto universe = static_cast<double>(rows);
  const auto united = static_cast<double>(united_rows(sets).size());
  double bits = log2_choose(universe, united);
  for (const std::span<const Index> set : sets) {
    bits += log2_choose(universe, static_cast<double>(set.size())) / n;
  }
  return (n - 1) / n * ((mean_touched(sets) + united) * static_cast<double>(row_bytes) + bits / 8);
}

double lower_bound_bytes(Index row_bytes, const IndexSets& sets) {
  if (sets.size() < 2) return 0;
  const auto n = static_cast<double>(sets.size());
  const auto united = static_cast<double>(united_rows(sets).size());
  return (mean_touched(sets) + (n - 2) / n * united) * static_cast<double>(row_bytes);
}

}  // namespace sparsesync
