// sequential: nothing crosses under backward. The yardstick.
#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"

namespace sparsesync {

Schedule schedule_sequentially(const ScheduleQuestion& question) {
  Schedule schedule = one_after_another(question.layers, each_layer(question.layers));
  schedule.after_backward = true;
  return schedule;
}

}  // namespace sparsesync
