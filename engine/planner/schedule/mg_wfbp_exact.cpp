// mg_wfbp_exact: of all mergings the one that is through the soonest.
#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"

namespace sparsesync {

Schedule schedule_mg_wfbp_exact(const ScheduleQuestion& question) {
  return one_after_another(question.layers, merge_exactly(question));
}

}  // namespace sparsesync
