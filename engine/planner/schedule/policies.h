// The policies, one file each: what schedule_policies() lists.
#pragma once

#include "engine/planner/schedule/schedule.h"

namespace sparsesync {

/// @{

/// Makes a schedule; schedule_policies() describes each policy in a line.
Schedule schedule_sequentially(const ScheduleQuestion& question);
Schedule schedule_wfbp(const ScheduleQuestion& question);
Schedule schedule_merge_all(const ScheduleQuestion& question);
Schedule schedule_mg_wfbp(const ScheduleQuestion& question);
Schedule schedule_mg_wfbp_exact(const ScheduleQuestion& question);
Schedule schedule_lazily(const ScheduleQuestion& question);
Schedule schedule_dear(const ScheduleQuestion& question);
Schedule schedule_auto(const ScheduleQuestion& question);
/// @}

}  // namespace sparsesync
