// The JSON of profile (design: "profile, JSON").
#pragma once

#include <string>
#include <vector>

#include "analysis/profile/profile.h"
#include "analysis/trace/trace.h"
#include "engine/support/json.h"

namespace sparsesync {

/// The whole text, without a line end.
/// @param profiles    one for each tensor of the trace
/// @param provenance  of the program and of what it read
std::string profile_json(const TraceHeader& trace, const std::vector<TensorProfile>& profiles,
                         const Json& provenance);

}  // namespace sparsesync
