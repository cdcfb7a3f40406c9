// Where a result comes from: what a table of figures is worth nothing without.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sparsesync {

/// What made a result, as names and values: version, commit, compiler, build type, processor,
/// cores, operating system, date (UTC).
std::vector<std::pair<std::string, std::string>> provenance();

/// Bytes of memory that this machine can give to new work; nothing is promised.
std::int64_t available_memory();

}  // namespace sparsesync
