#include "analysis/simulate/training_simulator.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "engine/support/random_draws.h"

namespace sparsesync {
namespace {

/// Draws log-normal numbers with mean 1 and the given standard deviation.
class Paces {
 public:
  explicit Paces(const Stragglers& stragglers) : random_(stragglers.seed) {
    const double variance = std::log1p(stragglers.deviation * stragglers.deviation);
    sigma_ = std::sqrt(variance);
    mu_ = -variance / 2;
  }

  void draw(std::span<double> paces) {
    for (double& pace : paces) {
      // Box-Muller transform.
      const double radius = std::sqrt(-2 * std::log(random_.uniform()));
      const double normal = radius * std::cos(2 * std::numbers::pi * random_.uniform());
      pace = std::exp(mu_ + sigma_ * normal);
    }
  }

 private:
  CounterRandom random_;
  double sigma_ = 0;
  double mu_ = 0;
};

double mean(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

}  // namespace

SimulatedStep simulate(const ModelCosts& costs, std::size_t workers, const SchedulePolicy& policy,
                       std::optional<double> full_bytes, const Stragglers& stragglers) {
  const BucketCosts of_buckets = costs.costs();
  ScheduleQuestion question{costs.layers(), of_buckets};
  question.full_bytes = full_bytes;
  SimulatedStep step;
  step.schedule = policy.plan(question);
  const bool are_alike = stragglers.deviation == 0;
  // Equal workers need only one simulation.
  StepClock clock(costs.layers(), of_buckets, step.schedule, are_alike ? 1 : workers);
  std::vector<double> paces(clock.ends().size(), 1);
  Paces drawn(stragglers);
  const auto go_on = [&](StepTimeline* timeline) {
    if (!are_alike) drawn.draw(paces);
    clock.step(paces, timeline);
  };
  // The first step differs: no gathers of a previous step are under way.
  constexpr int kWarmUp = 2;
  for (int i = 0; i < kWarmUp; ++i) go_on(nullptr);
  const double began = mean(clock.ends());
  constexpr int kShown = 3;
  const int steps = std::max(kShown, are_alike ? 1 : stragglers.steps);
  double pace = 0;
  for (int i = 0; i < steps; ++i) {
    go_on(i + kShown >= steps ? &step.timeline.emplace_back() : nullptr);
    pace += mean(paces) / steps;
  }
  step.iteration_s = (mean(clock.ends()) - began) / steps;
  step.compute_s = pace * compute_seconds(costs.layers());
  step.communication_s = clock.communication_seconds();
  step.exposed_s = std::max(0.0, step.iteration_s - step.compute_s);
  for (const LayerRange range : step.schedule.buckets) step.messages += costs.messages(range);
  return step;
}

}  // namespace sparsesync
