// Time that a thread has spent on a processor: neither its waiting nor the work of others counts.
#pragma once

#include <ctime>

#include "kernels/base/error.h"

namespace sparsesync {

/// Seconds so far. @param thread  the calling one if none is given
/// @throws Error if the thread is gone
inline double processor_seconds(clockid_t thread = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  if (clock_gettime(thread, &time) != 0) {
    throw Error("the processor time of a thread cannot be read: it is gone");
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace sparsesync
