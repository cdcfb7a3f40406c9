// Logging to standard error. The environment variable SPARSESYNC_LOG sets the level.
#pragma once

#include <cstdint>
#include <string>

namespace sparsesync {

/// Severity of a log line, in increasing order.
enum class LogLevel : std::uint8_t { debug, info, warning };

/// Sets the log level from SPARSESYNC_LOG: debug, info or warning. The level is warning before the
/// call, and if the variable is not set.
/// @throws InputError if the variable has another value; the level then stays unchanged
void set_log_level_from_environment();

/// Whether log() writes lines of that level. Check it before you build an expensive text.
bool log_enabled(LogLevel level);

/// Writes the line "sparsesync: LEVEL: TEXT" if the level is enabled. Safe from any thread.
void log(LogLevel level, const std::string& text);

}  // namespace sparsesync
