// What plan prints for people.
#pragma once

#include <string>

#include "analysis/plan/scale_plan.h"

namespace sparsesync {

/// Bytes, workspace and seconds of each scheme among each number of workers, the fastest with a
/// star; the theorem's optimum, γ, and where the fastest changes.
/// @param known_workers      of the trace: beyond them γ is extrapolated
/// @param eighth_of_workers  of them, which the last row knows
std::string plan_table(const ScalePlan& plan, int known_workers, int eighth_of_workers);

}  // namespace sparsesync
