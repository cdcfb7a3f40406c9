// The pace of a loop that asks whether something outside the program has happened.
#pragma once

#include <chrono>
#include <thread>

namespace sparsesync {

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
