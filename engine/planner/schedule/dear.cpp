// dear: DeAR (ICDCS 2023): reduces go on under backward, gathers under the next forward pass.
#include "engine/planner/schedule/merge.h"
#include "engine/planner/schedule/policies.h"

namespace sparsesync {

Schedule schedule_dear(const ScheduleQuestion& question) {
  return gathers_under_forward(
      question.layers, question.full_bytes ? merge_until_full(question.layers, *question.full_bytes,
                                                              question.first_bytes)
                                           : merge_for_overlap(question));
}

}  // namespace sparsesync
