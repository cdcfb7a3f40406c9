// The library's private interface to a GPU stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "kernels/base/context.h"
#include "sparsesync/device_stream.h"  // IWYU pragma: export

namespace sparsesync {

/// A check that runs repeatedly while the host waits for a device. A network uses it to end a wait
/// for work that depends on a failed worker.
class CancellationCheck {
 public:
  virtual ~CancellationCheck() = default;
  /// Returns if the wait may continue.
  /// @param since  start of the wait
  /// @throws the exception that ends the wait
  virtual void poll(std::chrono::steady_clock::time_point since) = 0;
};

/// Accumulates the time that a GPU works for a set of streams. Each kernel, copy and fill runs
/// alone, without overlap with another of these streams, and is timed. For benchmarks: the total
/// run time is then much longer than the accumulated time.
struct DeviceTimes {
  std::mutex one_at_a_time;
  double seconds = 0;
  std::int64_t pieces = 0;
};

/// Makes a GPU the calling thread's current one. The destructor restores the previous one. Creates
/// no context on any other GPU.
class DeviceGuard {
 public:
  /// @throws DeviceError
  explicit DeviceGuard(int device);
  ~DeviceGuard();  // NOLINT(performance-trivially-destructible): trivial only without CUDA
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
};

/// Returns whether work given to a stream is captured into a CUDA graph instead of executed.
/// @throws DeviceError
bool is_captured(Stream stream);

/// Copies bytes from the memory of another context, which may be on another GPU. Does not
/// synchronize the stream: order the copy with other work through events.
/// @throws DeviceError
void copy_from(const Context& source, std::span<const std::byte> from, const Context& context,
               std::byte* to);

/// Checks that a GPU is available.
/// @throws DeviceError naming what is missing: a build with CUDA, a driver, or a GPU with this
///         number
void expect_device(int device);

/// Paces a loop that polls for an event outside the program.
///
/// The loop is busy for the first 50 us, so that short waits stay short. It then sleeps for 20 us
/// at a time, so that a long wait occupies neither a core nor the driver's locks.
class Poll {
 public:
  using Clock = std::chrono::steady_clock;

  /// Pauses between two polls. Call it after each poll that has not found the event.
  void pause() const {
    constexpr std::chrono::microseconds kBusy{50};
    constexpr std::chrono::microseconds kAsleep{20};
    if (Clock::now() < since_ + kBusy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kAsleep);
    }
  }
  /// Returns the start of the wait.
  Clock::time_point since() const { return since_; }

 private:
  Clock::time_point since_ = Clock::now();
};

}  // namespace sparsesync
