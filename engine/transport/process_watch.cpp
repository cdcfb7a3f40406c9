#include "engine/transport/process_watch.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "kernels/base/bits.h"

namespace sparsesync {

std::string boot_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

ProcessName ProcessName::own() {
  const std::string boot = boot_id();
  struct stat processes {};
  if (boot.empty() || stat("/proc/self/ns/pid", &processes) != 0) {
    return {.process = getpid()};
  }
  return {mix64(std::hash<std::string>{}(boot) ^ mix64(processes.st_ino)) | 1U, getpid()};
}

ProcessWatch::~ProcessWatch() {
  for (const pollfd& watched : watched_) {
    if (watched.fd >= 0) close(watched.fd);
  }
}

void ProcessWatch::add(const ProcessName& own, const ProcessName& worker) {
  int handle = -1;
  if (own.machine != 0 && own.machine == worker.machine && own.process != worker.process) {
    handle = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(worker.process), 0));
  }
  watched_.push_back({handle, POLLIN, 0});
}

void ProcessWatch::poll(const std::function<void(Rank)>& ended) {
  if (::poll(watched_.data(), watched_.size(), 0) <= 0) return;
  for (std::size_t rank = 0; rank < watched_.size(); ++rank) {
    pollfd& watched = watched_[rank];
    if (watched.fd < 0 || (watched.revents & POLLIN) == 0) continue;
    close(watched.fd);
    watched.fd = -1;
    ended(Rank{static_cast<int>(rank)});
  }
}

}  // namespace sparsesync
