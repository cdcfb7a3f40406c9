#include "engine/support/log.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

constexpr std::array<std::string_view, 3> kNames{"debug", "info", "warning"};

std::atomic<LogLevel> lowest{LogLevel::warning};

}  // namespace

void set_log_level_from_environment() {
  // The environment is read once, before there is another thread.
  const char* value = std::getenv("SPARSESYNC_LOG");  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr || *value == '\0') return;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (value == kNames[i]) {
      lowest = static_cast<LogLevel>(i);
      return;
    }
  }
  throw InputError(
      fmt::format("SPARSESYNC_LOG is '{}': set it to debug, info or warning, or unset it", value));
}

bool log_enabled(LogLevel level) {
  return level >= lowest;
}

void log(LogLevel level, const std::string& text) {
  if (!log_enabled(level)) return;
  // One call, so that the lines of several threads do not mix.
  const std::string line =
      fmt::format("sparsesync: {}: {}\n", kNames[static_cast<std::size_t>(level)], printable(text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace sparsesync
