// The schedule `auto`: the fastest of all other schedules, and of schedules that run gathers
// whenever the link is idle, during the backward pass and the next forward pass.
#include <algorithm>
#include <limits>

#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"
#include "engine/planner/schedule/schedule_simulator.h"

namespace sparsesync {
namespace {

/// When a gather may run during the backward pass, between two reduces.
enum class Filling : std::uint8_t {
  on_time,   // if it does not delay the last reduce
  whenever,  // whenever no reduce is ready
};

/// Costs of a schedule's buckets, and when they are ready.
struct TimedBuckets {
  TimedBuckets(const ScheduleQuestion& question, std::span<const LayerRange> buckets) {
    const std::vector<double> of_layers = ready_seconds(question.layers);
    for (const LayerRange range : buckets) {
      takes.push_back(question.costs(range));
      ready.push_back(of_layers[static_cast<std::size_t>(range.first)]);
    }
    double end = 0;
    for (std::size_t bucket = 0; bucket < takes.size(); ++bucket) {
      end = std::max(end, ready[bucket]) + takes[bucket].reduce;
    }
    latest.resize(takes.size());
    for (std::size_t bucket = takes.size(); bucket-- > 0;) {
      end -= takes[bucket].reduce;
      latest[bucket] = end;
    }
  }

  std::vector<BucketSeconds> takes;
  std::vector<double> ready;
  std::vector<double> latest;  // latest start of each reduce that does not delay the last one
};

/// Returns a schedule that gathers during the backward pass, as far as `filling` allows. Among
/// reduced buckets it first gathers the one that the next forward pass needs first. The other
/// gathers run as in gathers_under_forward().
Schedule gathers_where_idle(const ScheduleQuestion& question, std::vector<LayerRange> buckets,
                            Filling filling) {
  const TimedBuckets timed(question, buckets);
  Schedule schedule = gathers_under_forward(question.layers, std::move(buckets));
  std::vector<ScheduledPhase> order;
  for (const ScheduledPhase& each : schedule.order) {
    if (each.phase == Phase::announce) order.push_back(each);
  }
  double now = 0;
  std::vector<std::size_t> reduced;  // and not gathered buckets; the last one is needed first
  for (std::size_t bucket = 0; bucket < timed.takes.size(); ++bucket) {
    while (now < timed.ready[bucket]) {
      const auto fits = std::find_if(reduced.rbegin(), reduced.rend(), [&](std::size_t each) {
        return filling == Filling::whenever ||
               now + timed.takes[each].gather <= timed.latest[bucket];
      });
      if (fits == reduced.rend()) break;
      now += timed.takes[*fits].gather;
      order.push_back({*fits, Phase::gather});
      reduced.erase(std::next(fits).base());
    }
    now = std::max(now, timed.ready[bucket]) + timed.takes[bucket].reduce;
    order.push_back({bucket, Phase::reduce});
    reduced.push_back(bucket);
  }
  for (std::size_t place = reduced.size(); place-- > 0;) {
    order.push_back({reduced[place], Phase::gather});
  }
  schedule.order = std::move(order);
  return schedule;
}

}  // namespace

Schedule schedule_auto(const ScheduleQuestion& question) {
  Schedule best;
  double least = std::numeric_limits<double>::infinity();
  const auto look_at = [&](Schedule schedule) {
    if (schedule.under_forward && !question.may_go_on_under_forward) return;
    const double seconds = step_seconds(question.layers, question.costs, schedule);
    if (seconds >= least) return;
    least = seconds;
    best = std::move(schedule);
  };
  for (const SchedulePolicy& policy : schedule_policies()) {
    if (policy.plan != schedule_auto) look_at(policy.plan(question));
  }
  if (!question.may_go_on_under_forward) return best;
  const auto fill = [&](const std::vector<LayerRange>& buckets) {
    look_at(gathers_where_idle(question, buckets, Filling::on_time));
    look_at(gathers_where_idle(question, buckets, Filling::whenever));
  };
  fill(best.buckets);
  for (const double size : sizes_to_try(question.layers)) {
    fill(merge_until_full(question.layers, size));
  }
  return best;
}

}  // namespace sparsesync
