// What the workers of one process do, recorded for the virtual clock: a transport around another.
#pragma once

#include <ctime>
#include <memory>
#include <vector>

#include "engine/planner/calibration/replay.h"
#include "sparsesync/errors.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Records the steps of all workers. Between the calls of a transport a worker computes: what that
/// takes is the processor time of the one thread that makes the calls, so that neither waiting nor
/// the work of others counts. What the transport itself does, copies among it, is the network's and
/// does not count either; nor does what other threads of a worker compute.
///
/// Only so many workers compute at a time: in a step a worker has a turn, and gives it up where it
/// has to wait in its transport. Waiting for a turn ends with the wait's deadline, and at once when
/// somebody aborts.
class Recording {
 public:
  /// @param size   workers
  /// @param turns  workers that compute at a time, 1 or more: few, so that they do not wear each
  ///               other's caches and memory out
  explicit Recording(int size, int turns = 1);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Records what goes through a worker's end of a network, once for each. This recording outlives
  /// what it returns, which has no all-reduce of its own.
  std::unique_ptr<Transport> wrap(std::unique_ptr<Transport> end);

  /// A step of a worker begins: from here on what its transport's thread does counts. Waits for a
  /// turn. Any thread may call it.
  /// @pre no call of the worker's transport is under way, or made meanwhile
  /// @throws DeadlineError if there is no turn until then
  void begin_step(Rank rank, Clock::time_point until);
  /// It ended. A step that fails is not ended; it leaves no record and gives its turn up when its
  /// transport goes or the next one begins.
  /// @pre the worker is in a step, and all groups of it are finished
  void end_step(Rank rank);

  /// The steps that all workers ended, in order; forgets them.
  /// @pre no worker is in a step
  std::vector<RecordedStep> take_steps();

  class Turns;  // of the implementation
  struct Worker;

 private:
  std::unique_ptr<Turns> turns_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

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
