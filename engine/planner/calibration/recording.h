// Records the work of all workers of a process for the virtual clock, through a wrapper around each
// worker's transport.
#pragma once

#include <ctime>
#include <memory>
#include <vector>

#include "engine/planner/calibration/replay.h"
#include "sparsesync/errors.h"
#include "sparsesync/transport.h"

namespace sparsesync {

/// Records the steps of all workers. Between the calls of its transport a worker computes. The
/// recorded time is the CPU time of the thread that makes these calls, so neither waiting nor other
/// workers' work counts. Work of the transport itself, such as copies, belongs to the network and
/// does not count. Work of a worker's other threads does not count either.
///
/// The number of workers that compute at the same time is limited. In a step a worker holds a turn,
/// and releases it while it waits in its transport. A wait for a turn ends with the timeout of the
/// transport's wait, or at once after an abort.
class Recording {
 public:
  /// Creates the records of all workers.
  /// @param size   number of workers
  /// @param turns  number of workers that compute at the same time, at least 1. A small number
  ///               limits contention for caches and memory bandwidth
  explicit Recording(int size, int turns = 1);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Wraps a worker's transport. Call it once for each worker. The recording outlives the returned
  /// transport, which has no native all-reduce.
  std::unique_ptr<Transport> wrap(std::unique_ptr<Transport> end);

  /// Begins a worker's step, and waits for a turn. From now on the transport's thread is recorded.
  /// Safe from any thread.
  /// @pre no call of the worker's transport runs during this call
  /// @throws DeadlineError if there is no turn by `until`
  void begin_step(Rank rank, Clock::time_point until);
  /// Ends a worker's step. Do not call it for a failed step, which is not recorded. A failed step's
  /// turn is released when the transport is destroyed, or when the next step begins.
  /// @pre the worker is in a step, and all its groups are finished
  void end_step(Rank rank);

  /// Returns and removes the steps that all workers have ended, in order.
  /// @pre no worker is in a step
  std::vector<RecordedStep> take_steps();

  class Turns;  // private
  struct Worker;

 private:
  std::unique_ptr<Turns> turns_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

/// Returns the CPU time of a thread, in seconds.
/// @param thread  clock of the thread; by default that of the calling thread
/// @throws Error if the thread has ended
inline double processor_seconds(clockid_t thread = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  if (clock_gettime(thread, &time) != 0) {
    throw Error("the CPU time of a thread cannot be read: the thread has ended");
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace sparsesync
