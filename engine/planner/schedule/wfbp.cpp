// wfbp: wait-free back-propagation (Poseidon, 2017), each layer by itself.
#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"

namespace sparsesync {

Schedule schedule_wfbp(const ScheduleQuestion& question) {
  return one_after_another(question.layers, each_layer(question.layers));
}

}  // namespace sparsesync
