// What is said on the way, on standard error; SPARSESYNC_LOG decides how much.
#pragma once

#include <cstdint>
#include <string>

namespace sparsesync {

/// How much a text matters: from what helps to look for a fault to what a user should know.
enum class LogLevel : std::uint8_t { debug, info, warning };

/// Reads SPARSESYNC_LOG (debug, info or warning; warning where it is not set). Until it is called,
/// the level is warning.
/// @throws InputError if the variable has another value; then the level stays as it was
void set_log_level_from_environment();

/// Whether log() says anything at that level: to be asked before a text that is costly to make.
bool log_enabled(LogLevel level);

/// Writes "sparsesync: LEVEL: TEXT" as one line, if the level allows. Any thread may call it.
void log(LogLevel level, const std::string& text);

}  // namespace sparsesync
