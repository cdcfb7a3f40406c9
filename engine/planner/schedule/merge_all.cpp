// merge_all: one message of all layers, after backward (SyncEASGD, 2017).
#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"

namespace sparsesync {

Schedule schedule_merge_all(const ScheduleQuestion& question) {
  Schedule schedule = one_after_another(question.layers, merge_all(question.layers));
  schedule.after_backward = true;
  return schedule;
}

}  // namespace sparsesync
