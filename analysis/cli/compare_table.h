// What compare prints for people: before it runs what it will need, and after it the table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/compare/compare.h"
#include "engine/planner/scheme/plan.h"

namespace sparsesync {

/// One line: the workspace that each scheme will need.
/// @param workers  on this machine
std::string memory_needs_text(const std::vector<MemoryNeed>& needs, int workers);

/// The table of --explain.
/// @param predictions  in the order of its rows
std::string predictions_table(const std::vector<Prediction>& predictions);

/// What was run, and the yardsticks: what stands above the table.
std::string compare_heading(const CompareReport& report, std::string_view transport);

/// A row for each scheme that ran, the fastest one first, with a star at the first that is correct;
/// below it what overflowed and what was skipped.
std::string compare_table(const CompareReport& report);

}  // namespace sparsesync
