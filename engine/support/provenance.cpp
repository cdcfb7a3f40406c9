#include "engine/support/json.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "sparsesync_build.h"  // made by the build: SPARSESYNC_COMMIT

namespace sparsesync {
namespace {

/// The value behind "NAME...:" in one of Linux's text files; empty if there is none.
std::string field(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> provenance() {
  utsname system{};
  uname(&system);
  const std::time_t now = std::time(nullptr);
  return {
      {"version", SPARSESYNC_VERSION},
      {"commit", SPARSESYNC_COMMIT},
      {"compiler", SPARSESYNC_COMPILER},
      {"build", SPARSESYNC_BUILD_TYPE},
      {"cpu", field("/proc/cpuinfo", "model name")},
      {"cores", fmt::format("{}", std::thread::hardware_concurrency())},
      {"os", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
  };
}

std::int64_t available_memory() {
  std::istringstream text(field("/proc/meminfo", "MemAvailable"));
  std::int64_t kibibytes = 0;
  text >> kibibytes;
  return text ? kibibytes * 1024 : std::numeric_limits<std::int64_t>::max();
}

}  // namespace sparsesync
