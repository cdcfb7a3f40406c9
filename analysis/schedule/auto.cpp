// auto: of all other schedules the one with which a step takes the least.
#include <limits>

#include "analysis/schedule/policies.h"
#include "analysis/step_clock.h"

namespace sparsesync {

Schedule schedule_auto(const ScheduleQuestion& question) {
  Schedule best;
  double least = std::numeric_limits<double>::infinity();
  for (const SchedulePolicy& policy : schedule_policies()) {
    if (policy.plan == schedule_auto) continue;
    Schedule schedule = policy.plan(question);
    if (schedule.under_forward && !question.may_go_on_under_forward) continue;
    const double seconds = step_seconds(question.layers, question.costs, schedule);
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(schedule);
  }
  return best;
}

}  // namespace sparsesync
