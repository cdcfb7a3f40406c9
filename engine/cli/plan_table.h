// What plan prints for people.
#pragma once

#include <string>

#include "analysis/scale_plan.h"

namespace sparsesync {

/// Seconds of each scheme among each number of workers, the fastest with a star; γ, the theorem's
/// optimum, and where the fastest changes.
/// @param known_workers  of the trace: beyond them γ is extrapolated
std::string plan_table(const ScalePlan& plan, int known_workers);

}  // namespace sparsesync
