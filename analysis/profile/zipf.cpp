#include "analysis/profile/touch_histogram.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sparsesync {
namespace {

constexpr double kSteepest = 12;  // the second row is drawn 4,096 times less often than the first

/// A range of ranks, represented by the rank in its middle.
struct RankRange {
  double middle = 0;  // logarithm of the middle rank
  double ranks = 0;   // number of ranks
};

/// Splits the ranks into ranges: the first ones one by one, then ranges of 1/40 of the ranks before
/// them.
std::vector<RankRange> rank_ranges(Index rows) {
  std::vector<RankRange> ranges;
  for (Index begin = 1; begin <= rows;) {
    const Index end = std::min(begin + std::max<Index>(begin / 40, 1), rows + 1);
    ranges.push_back(
        {(std::log(static_cast<double>(begin)) + std::log(static_cast<double>(end - 1))) / 2,
         static_cast<double>(end - begin)});
    begin = end;
  }
  return ranges;
}

double expected_rows(const std::vector<RankRange>& ranges, double s, double scale) {
  double rows = 0;
  for (const RankRange& each : ranges) {
    rows -= each.ranks * std::expm1(-scale * std::exp(-s * each.middle));
  }
  return rows;
}

/// Returns ln of the scale for which a worker's step is expected to touch `rows` rows.
double log_scale(const std::vector<RankRange>& ranges, double s, double rows) {
  double low = -60;
  double high = 60;
  for (int step = 0; step < 80; ++step) {
    const double middle = (low + high) / 2;
    (expected_rows(ranges, s, std::exp(middle)) < rows ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// The observed counts, and their likelihood.
class Observation {
 public:
  Observation(Index rows, const CountsOfCounts& counts, std::int64_t samples)
      : ranges_(rank_ranges(rows)), counts_(counts), samples_(static_cast<double>(samples)) {
    double touched = 0;
    double touches = 0;
    for (const auto& [times, rows_of_it] : counts) {
      touched += static_cast<double>(rows_of_it);
      touches += static_cast<double>(times) * static_cast<double>(rows_of_it);
    }
    mean_rows_ = touches / samples_;
    if (static_cast<double>(rows) > touched) {
      counts_.insert(counts_.begin(), {0, rows - static_cast<std::int64_t>(touched)});
    }
  }

  /// Returns ln of the likelihood, without terms that do not depend on s.
  double log_likelihood(double s) const {
    const double ln_scale = log_scale(ranges_, s, mean_rows_);
    std::vector<double> touched(ranges_.size());    // [range]: ln p
    std::vector<double> untouched(ranges_.size());  // [range]: ln (1 - p)
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const double drawn = std::exp(ln_scale - s * ranges_[i].middle);
      touched[i] = drawn < 1e-12 ? ln_scale - s * ranges_[i].middle : std::log(-std::expm1(-drawn));
      untouched[i] = -drawn;
    }
    double sum = 0;
    for (const auto& [times, rows] : counts_) {
      sum +=
          static_cast<double>(rows) * log_of_mean(touched, untouched, static_cast<double>(times));
    }
    return sum;
  }

 private:
  /// Returns ln of the sum over ranks of p^times (1 - p)^(samples - times).
  double log_of_mean(const std::vector<double>& touched, const std::vector<double>& untouched,
                     double times) const {
    const auto term = [&](std::size_t i) {
      return times * touched[i] + (samples_ - times) * untouched[i];
    };
    double largest = term(0);
    for (std::size_t i = 1; i < ranges_.size(); ++i) largest = std::max(largest, term(i));
    double sum = 0;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const double below = term(i) - largest;
      if (below > -40) sum += ranges_[i].ranks * std::exp(below);
    }
    return largest + std::log(sum);
  }

  std::vector<RankRange> ranges_;
  CountsOfCounts counts_;
  double samples_;
  double mean_rows_ = 0;
};

/// Returns the maximum in [low, high] of a function that rises and then falls, by golden-section
/// search.
template <typename Function>
double peak_of(double low, double high, Function&& value) {
  const double golden = (std::sqrt(5.0) - 1) / 2;
  double left = high - golden * (high - low);
  double right = low + golden * (high - low);
  double of_left = value(left);
  double of_right = value(right);
  while (high - low > 1e-6) {
    if (of_left < of_right) {
      low = left;
      left = right;
      of_left = of_right;
      right = low + golden * (high - low);
      of_right = value(right);
    } else {
      high = right;
      right = left;
      of_right = of_left;
      left = high - golden * (high - low);
      of_left = value(left);
    }
  }
  return (low + high) / 2;
}

}  // namespace

std::optional<ZipfLaw> fit_zipf(Index rows, const CountsOfCounts& counts, std::int64_t samples) {
  std::int64_t touched = 0;
  for (const auto& [times, rows_of_it] : counts) touched += rows_of_it;
  if (touched < 2 || (counts.size() == 1 && counts.front().first == samples)) return std::nullopt;
  const Observation seen(rows, counts, samples);
  const auto likelihood = [&](double s) { return seen.log_likelihood(s); };

  // Golden-section search finds any one peak. A coarse scan first brackets the highest one.
  constexpr double kStep = 0.25;
  double best = 0;
  double most = likelihood(0);
  for (int step = 1; step * kStep <= kSteepest; ++step) {
    const double s = step * kStep;
    if (const double of_s = likelihood(s); of_s > most) {
      most = of_s;
      best = s;
    }
  }
  ZipfLaw law;
  law.s = peak_of(std::max(0.0, best - kStep), std::min(kSteepest, best + kStep), likelihood);
  // The interval ends where twice the log-likelihood falls by 3.841 below its maximum: the 95%
  // quantile of chi-squared with one degree of freedom.
  const double enough = likelihood(law.s) - 3.841 / 2;
  const auto edge = [&](double outside) {
    if (likelihood(outside) >= enough) return outside;
    double inside = law.s;
    while (std::abs(outside - inside) > 1e-6) {
      const double middle = (inside + outside) / 2;
      (likelihood(middle) >= enough ? inside : outside) = middle;
    }
    return inside;
  };
  law.ci = {edge(0), edge(kSteepest)};
  if (law.ci.high >= kSteepest) return std::nullopt;
  return law;
}

}  // namespace sparsesync
