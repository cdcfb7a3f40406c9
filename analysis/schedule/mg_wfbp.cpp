// mg_wfbp: MG-WFBP as published (INFOCOM 2019).
#include "analysis/merge.h"
#include "analysis/schedule/policies.h"

namespace sparsesync {

Schedule schedule_mg_wfbp(const ScheduleQuestion& question) {
  return one_after_another(question.layers, merge_greedily(question));
}

}  // namespace sparsesync
