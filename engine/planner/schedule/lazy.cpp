// lazy: GradientFlow's lazy all-reduce (arXiv 1902.06855): a bucket crosses once it has some bytes.
#include <limits>

#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"
#include "engine/planner/schedule/schedule_simulator.h"

namespace sparsesync {
Schedule schedule_lazily(const ScheduleQuestion& question) {
  if (question.full_bytes) {
    return one_after_another(
        question.layers,
        merge_until_full(question.layers, *question.full_bytes, question.first_bytes));
  }
  Schedule best;
  double least = std::numeric_limits<double>::infinity();
  for (const double size : sizes_to_try(question.layers)) {
    Schedule schedule = one_after_another(question.layers, merge_until_full(question.layers, size));
    const double seconds = step_seconds(question.layers, question.costs, schedule);
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(schedule);
  }
  return best;
}

}  // namespace sparsesync
