// The JSON of plan (design: "plan, JSON").
#pragma once

#include <string>

#include "analysis/plan/scale_plan.h"
#include "engine/support/json.h"
#include "schemes/cost.h"

namespace sparsesync {

/// The whole text, without a line end.
/// @param provenance  of the program and of what it read
std::string plan_json(const ScalePlan& plan, const Network& network, const Json& provenance);

}  // namespace sparsesync
