#include "engine/planner/schedule/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sparsesync {

double SparseGradient::united(double workers) const {
  const double most = std::min(static_cast<double>(rows), nnz * workers);
  std::pair<double, double> before{1, 1};
  double power = 1;
  for (const auto& [known, gamma] : densification) {
    if (known <= 1) continue;
    power = std::log(gamma / before.second) / std::log(known / before.first);
    if (known >= workers) break;
    before = {known, gamma};
  }
  return std::min(most, nnz * before.second * std::pow(workers / before.first, power));
}

SpaceStatistics SparseGradient::statistics(int workers) const {
  SpaceStatistics statistics;
  statistics.touched_mean = nnz;
  statistics.touched_max = nnz;
  statistics.united = united(workers);
  const double alone = statistics.united - united(workers - 1);
  statistics.sent_at_least = nnz + std::max(0, workers - 2) * alone;
  for (int group = 1; group < workers; group *= 2) {
    statistics.united_in_groups.push_back(united(group));
  }
  return statistics;
}

}  // namespace sparsesync
