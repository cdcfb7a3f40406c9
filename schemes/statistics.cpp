#include "schemes/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/views.h"

namespace sparsesync {

namespace {

/// Returns a quantile of the standard normal distribution, by bisection of the distribution
/// function.
double normal_quantile(double probability) {
  double low = -10;
  double high = 10;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// Computes SpaceStatistics::sent_at_least.
/// @param sets  [worker]
/// @param all   the result of sorted_rows()
double sent_at_least(const IndexSets& sets, std::span<const Index> all) {
  std::vector<Index> alone;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool repeats =
        (i > 0 && all[i - 1] == all[i]) || (i + 1 < all.size() && all[i + 1] == all[i]);
    if (!repeats) alone.push_back(all[i]);
  }
  const double others = std::max(0.0, static_cast<double>(sets.size()) - 2);
  double most = 0;
  for (const std::span<const Index> set : sets) {
    double own = 0;
    for (const Index row : set) {
      own += std::binary_search(alone.begin(), alone.end(), row) ? 1 : 0;
    }
    most = std::max(most, static_cast<double>(set.size()) + others * own);
  }
  return most;
}

}  // namespace

SpaceStatistics statistics_of(const IndexSets& sets, Index rows) {
  const auto workers = static_cast<double>(sets.size());
  const EvenRanges ranges(rows, std::ssize(sets));
  std::vector<Index> united = sorted_rows(sets);
  SpaceStatistics statistics;
  statistics.sent_at_least = sent_at_least(sets, united);
  united.erase(std::unique(united.begin(), united.end()), united.end());
  statistics.united = static_cast<double>(united.size());
  for (const std::span<const Index> set : sets) {
    const auto touched = static_cast<double>(set.size());
    statistics.touched_mean += touched / workers;
    statistics.touched_max = std::max(statistics.touched_max, touched);
  }
  for (std::size_t group = 1; group < sets.size(); group *= 2) {
    std::size_t most = 0;
    for (std::size_t first = 0; first < sets.size(); first += group) {
      const auto begin = sets.begin() + static_cast<std::ptrdiff_t>(first);
      const std::size_t workers_of_it = std::min(group, sets.size() - first);
      most = std::max(
          most, united_rows({begin, begin + static_cast<std::ptrdiff_t>(workers_of_it)}).size());
    }
    statistics.united_in_groups.push_back(static_cast<double>(most));
  }
  for (Index part = 0; part < ranges.parts(); ++part) {
    std::size_t pushed = 0;
    for (const std::span<const Index> set : sets) {
      pushed += indices_in(set, ranges.range(part)).size();
    }
    const auto pulled = static_cast<double>(indices_in(united, ranges.range(part)).size());
    if (united.empty()) continue;
    statistics.push_skewness =
        std::max(statistics.push_skewness, static_cast<double>(pushed) / statistics.touched_mean);
    statistics.pull_skewness =
        std::max(statistics.pull_skewness, workers * pulled / statistics.united);
  }
  return statistics;
}

void add_share(SpaceStatistics& sum, const SpaceStatistics& of, double share) {
  sum.touched_mean += share * of.touched_mean;
  sum.touched_max += share * of.touched_max;
  sum.united += share * of.united;
  sum.push_skewness += share * of.push_skewness;
  sum.pull_skewness += share * of.pull_skewness;
  sum.sent_at_least += share * of.sent_at_least;
  sum.united_in_groups.resize(of.united_in_groups.size());
  for (std::size_t i = 0; i < of.united_in_groups.size(); ++i) {
    sum.united_in_groups[i] += share * of.united_in_groups[i];
  }
}

double united_by(const SpaceStatistics& statistics, int workers, int size) {
  if (workers >= size) return statistics.united;
  const std::vector<double>& known = statistics.united_in_groups;
  // The nearest known groups: one with at most `workers` workers, and one with more.
  std::pair<double, double> below{1, known.empty() ? statistics.touched_max : known.front()};
  std::pair<double, double> above{size, statistics.united};
  for (std::size_t i = 0; i < known.size(); ++i) {
    const auto group = static_cast<double>(std::size_t{1} << i);
    if (group <= workers) {
      below = {group, known[i]};
    } else {
      above = {group, known[i]};
      break;
    }
  }
  if (below.second <= 0) return 0;
  const double power = std::log(above.second / below.second) / std::log(above.first / below.first);
  return below.second * std::pow(workers / below.first, power);
}

double expected_largest_normal(int count) {
  return count < 2 ? 0 : normal_quantile((count - 0.375) / (count + 0.25));
}

double expected_imbalance(double rows, double universe, int parts) {
  if (parts < 2 || rows <= 0) return 1;
  const double share = rows / parts;
  const double spread = std::sqrt(share * (1 - 1.0 / parts) * std::max(0.0, 1 - rows / universe));
  return std::min(static_cast<double>(parts), 1 + expected_largest_normal(parts) * spread / share);
}

IndexSets views_of(const OwnedIndexSets& sets) {
  return {sets.begin(), sets.end()};
}

std::span<const Index> indices_in(std::span<const Index> set, IndexRange range) {
  const auto begin = std::lower_bound(set.begin(), set.end(), range.begin);
  const auto end = std::lower_bound(begin, set.end(), range.end);
  return {begin, end};
}

std::vector<Index> sorted_rows(const IndexSets& sets) {
  std::vector<Index> all;
  for (const std::span<const Index> set : sets) all.insert(all.end(), set.begin(), set.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<Index> united_rows(const IndexSets& sets) {
  std::vector<Index> all = sorted_rows(sets);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace sparsesync
