#include "sparsesync/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"

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

void check_schedule(const Schedule& schedule, std::size_t layers) {
  int before = static_cast<int>(layers);
  for (const LayerRange range : schedule.buckets) {
    if (range.last != before - 1 || range.first > range.last || range.first < 0) {
      throw InputError(
          fmt::format("a schedule's bucket has layers {} to {}, and must end just "
                      "before layer {}",
                      range.first, range.last, before));
    }
    before = range.first;
  }
  if (before != 0) throw InputError(fmt::format("a schedule lacks the first {} layers", before));
  std::vector<std::array<int, kPhases>> phases(schedule.buckets.size());
  for (const ScheduledPhase& each : schedule.order) {
    if (each.bucket >= phases.size()) {
      throw InputError(fmt::format("a schedule's order has bucket {}, but there are {} buckets",
                                   each.bucket, phases.size()));
    }
    std::array<int, kPhases>& of_bucket = phases[each.bucket];
    const auto phase = static_cast<std::size_t>(each.phase);
    const bool comes_late = std::any_of(of_bucket.begin() + static_cast<std::ptrdiff_t>(phase),
                                        of_bucket.end(), [](int times) { return times > 0; });
    const bool lacks_reduce =
        each.phase == Phase::gather && of_bucket[static_cast<std::size_t>(Phase::reduce)] == 0;
    if (comes_late || lacks_reduce) {
      throw InputError(fmt::format("a schedule has the {} of bucket {} out of order",
                                   name_of(each.phase), each.bucket));
    }
    ++of_bucket[phase];
  }
  for (std::size_t bucket = 0; bucket < phases.size(); ++bucket) {
    if (phases[bucket][static_cast<std::size_t>(Phase::gather)] == 0) {
      throw InputError(fmt::format("a schedule does not gather bucket {}", bucket));
    }
  }
}

}  // namespace sparsesync
