// mg_wfbp: MG-WFBP as published (INFOCOM 2019).
#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"

namespace sparsesync {

Schedule schedule_mg_wfbp(const ScheduleQuestion& question) {
  return one_after_another(question.layers, merge_greedily(question));
}

}  // namespace sparsesync
