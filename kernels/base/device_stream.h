// The library's private interface of a GPU's stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "kernels/base/context.h"
#include "sparsesync/device_stream.h"  // IWYU pragma: export

namespace sparsesync {

/// Polled while the host waits for a device. A network thus ends a wait for work that waits for
/// another worker.
class CancellationCheck {
 public:
  virtual ~CancellationCheck() = default;
  /// Returns if the wait may go on.
  /// @param since  when the wait began
  /// @throws what the wait is to throw
  virtual void poll(std::chrono::steady_clock::time_point since) = 0;
};

/// How long a GPU works for some streams: each kernel, copy and fill runs alone, none beside
/// another of these streams, and is waited for and timed. For benches: it takes much longer than
/// that.
struct DeviceTimes {
  std::mutex one_at_a_time;
  double seconds = 0;
  std::int64_t pieces = 0;
};

/// Makes a GPU the calling thread's current one, and restores what was current before when it
/// ends. Creates no context on any other GPU.
class DeviceGuard {
 public:
  /// @throws DeviceError
  explicit DeviceGuard(int device);
  ~DeviceGuard();  // NOLINT(performance-trivially-destructible): without CUDA alone
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
};

/// Whether work given to a stream is captured into a CUDA graph rather than carried out.
/// @throws DeviceError
bool is_captured(Stream stream);

/// Copies bytes in memory that another context works on, on another GPU, too. Does not synchronize
/// the stream: events order it with other work.
/// @throws DeviceError
void copy_from(const Context& source, std::span<const std::byte> from, const Context& context,
               std::byte* to);

/// @throws DeviceError naming what is missing: a build with CUDA, a driver, a GPU of that number
void expect_device(int device);

/// The pace of a loop that polls for an event outside the program.
///
/// Busy for the first 50 us, so that short waits stay short. Then it sleeps for 20 us at a time, so
/// that a long wait takes neither a core nor the locks of a driver.
class Poll {
 public:
  using Clock = std::chrono::steady_clock;

  /// To be called after each question that was answered by "not yet".
  void pause() const {
    constexpr std::chrono::microseconds kBusy{50};
    constexpr std::chrono::microseconds kAsleep{20};
    if (Clock::now() < since_ + kBusy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kAsleep);
    }
  }
  /// When the wait began.
  Clock::time_point since() const { return since_; }

 private:
  Clock::time_point since_ = Clock::now();
};

}  // namespace sparsesync
