// The JSON of compare (design: "compare, JSON").
#pragma once

#include <string>

#include "analysis/compare/compare.h"
#include "engine/support/json.h"

namespace sparsesync {

/// The whole text, without a line end.
/// @param transport   local or mpi
/// @param provenance  of the program and of what it read
std::string compare_json(const CompareReport& report, const std::string& transport,
                         const Json& provenance);

}  // namespace sparsesync
