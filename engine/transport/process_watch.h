// Detects the end of worker processes on this machine.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sparsesync/rank.h"

namespace sparsesync {

/// Returns a text that identifies this boot of this machine's kernel; "" if it is unknown.
std::string boot_id();

/// Identifies a process. Processes with equal `machine` can see each other's process ids.
struct ProcessName {
  /// Returns the name of this process.
  static ProcessName own();

  std::uint64_t machine = 0;  // 0: unknown
  std::int64_t process = 0;
};

/// Detects the end of processes on this machine, without a message from them. A process that its
/// parent has not waited for yet counts as ended.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();

  /// Adds the next worker. Processes on other machines, or on a kernel without pidfd_open, are not
  /// watched: their loss is detected by the timeout.
  void add(const ProcessName& own, const ProcessName& worker);

  /// Calls ended(rank) once for each worker whose process has ended. Does not wait.
  void poll(const std::function<void(Rank)>& ended);

 private:
  std::vector<pollfd> watched_;  // [rank]
};

}  // namespace sparsesync
