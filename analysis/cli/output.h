// JSON and tables of the commands compare, plan and profile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/compare/compare.h"
#include "analysis/plan/scale_plan.h"
#include "analysis/profile/profile.h"
#include "analysis/trace/trace.h"
#include "engine/planner/scheme/plan.h"
#include "engine/support/json.h"
#include "schemes/cost.h"
#include "sparsesync/gradient.h"

namespace sparsesync {

/// The whole text, without a line end.
/// @param transport   local or mpi
/// @param provenance  of the program and of what it read
std::string compare_json(const CompareReport& report, const std::string& transport,
                         const Json& provenance);

/// The whole text, without a line end.
/// @param provenance  of the program and of what it read
std::string plan_json(const ScalePlan& plan, const Network& network, const Json& provenance);

/// The whole text, without a line end.
/// @param profiles    one for each tensor of the trace
/// @param provenance  of the program and of what it read
std::string profile_json(const TraceHeader& trace, const std::vector<TensorProfile>& profiles,
                         const Json& provenance);

/// One line: the workspace that each scheme will need.
/// @param workers  on this machine
std::string memory_needs_text(const std::vector<MemoryNeed>& needs, int workers);

/// The table of --explain.
/// @param predictions  in the order of its rows
std::string predictions_table(const std::vector<Prediction>& predictions);

/// Returns the lines above the table: the run, and the lower bounds.
std::string compare_heading(const CompareReport& report, std::string_view transport);

/// A row for each scheme that ran, the fastest one first, with a star at the first that is correct;
/// below it what overflowed and what was skipped.
std::string compare_table(const CompareReport& report);

/// Bytes, workspace and seconds of each scheme among each number of workers, the fastest with a
/// star; the theorem's optimum, γ, and where the fastest changes.
/// @param known_workers      of the trace: beyond them γ is extrapolated
/// @param eighth_of_workers  of them, which the last row knows
std::string plan_table(const ScalePlan& plan, int known_workers, int eighth_of_workers);

/// The tables of one tensor.
std::string profile_table(const TensorSpec& tensor, const TensorProfile& profile);

}  // namespace sparsesync
