#include "analysis/plan/scale_plan.h"

#include <cmath>
#include <set>

namespace sparsesync {
namespace {

TheoremSeconds theorem(const Outlook& outlook, const Network& network, int workers) {
  constexpr double kIndexBytes = 4;
  double bytes = 0;  // rows and 4-byte indices of one worker
  for (std::size_t i = 0; i < outlook.spaces().size(); ++i) {
    bytes += outlook.touched_mean(i) *
             (static_cast<double>(outlook.spaces()[i].row_bytes()) + kIndexBytes);
  }
  const double seconds = bytes * 8 / network.rate_bps;
  TheoremSeconds all;
  const double n = workers;
  all.balanced = (n - 1) / n * (1 + outlook.densification(workers)) * seconds;
  for (int group = 1; group < workers; group *= 2) {
    all.hierarchy += outlook.densification(group) * seconds;
  }
  return all;
}

/// Returns the fastest variant of each scheme that is not ruled out.
std::vector<Prediction> usable(std::vector<Prediction> predictions) {
  std::set<std::string> seen;
  std::erase_if(predictions, [&](const Prediction& each) {
    return !each.ruled_out.empty() || !seen.insert(each.variant.scheme).second;
  });
  return predictions;
}

/// Returns the name of the fastest scheme; empty if no scheme is usable.
std::string best_of(const std::vector<Prediction>& predictions) {
  return predictions.empty() ? std::string() : predictions.front().variant.scheme;
}

}  // namespace

ScalePlan plan_over(const Outlook& outlook, const Network& network, const SchemeOptions& options,
                    const std::vector<int>& workers, std::optional<double> memory,
                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  std::int64_t done = 0;
  const auto one_done = [&] { progress(++done, 2 * std::ssize(workers) - 1); };
  const auto plan_of = [&](int size) {
    const Statistics statistics = outlook.statistics(size);
    PlanQuestion question{outlook.spaces(), size, statistics, network, options};
    question.memory = memory;
    return usable(plan(question));
  };
  ScalePlan all;
  for (const int size : workers) {
    all.plans.push_back({size, outlook.densification(size), size <= outlook.known_workers(),
                         outlook.densification_from_an_eighth(size),
                         theorem(outlook, network, size), plan_of(size)});
    one_done();
  }
  for (std::size_t i = 1; i < all.plans.size(); ++i) {
    const int end = all.plans[i].workers;
    int before = all.plans[i - 1].workers;
    std::string from = best_of(all.plans[i - 1].predictions);
    const std::string last = best_of(all.plans[i].predictions);
    // Without a usable scheme on either side there is no crossover.
    while (!from.empty() && !last.empty() && from != last && before < end) {
      int after = end;
      while (after - before > 1) {
        const int middle = before + (after - before) / 2;
        (best_of(plan_of(middle)) == from ? before : after) = middle;
      }
      // A third scheme may be the fastest between the two.
      const std::string to = after == end ? last : best_of(plan_of(after));
      if (!to.empty()) all.crossovers.push_back({after, from, to});
      from = to;
      before = after;
    }
    one_done();
  }
  return all;
}

std::vector<int> doublings(int first, int last) {
  std::vector<int> all{first};
  for (std::int64_t power = 1; power < last; power *= 2) {
    if (power > first) all.push_back(static_cast<int>(power));
  }
  if (last > first) all.push_back(last);
  return all;
}

}  // namespace sparsesync
