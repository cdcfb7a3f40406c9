// Errors of the system that say what ran out and what helps.
#pragma once

#include <string>

namespace sparsesync {

/// Whether an error number says that the machine, or a limit of the process, has run out of
/// something: no fault of the path that was to be opened.
bool is_exhaustion(int error);

/// Describes an error number; where something ran out, with the mend: "Too many open files; raise
/// the limit (ulimit -n)".
std::string with_mend_of_system(int error);

}  // namespace sparsesync
