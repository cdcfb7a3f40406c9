// A progress bar for work that takes more than two seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace sparsesync {

/// Drawn on standard error, only where that is a terminal and two seconds have passed; erased at
/// the end, so that nothing of it stays between the lines of a result. One thread uses it.
class Progress {
 public:
  /// @param label  a few words before the bar
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Draws the bar anew, if it is time to.
  /// @param done   of `total`
  /// @param total  the work in all; 0 or more
  void update(std::int64_t done, std::int64_t total);
  /// Another label from now on, such as the name of what is measured.
  void set_label(std::string label) { label_ = std::move(label); }
  /// Takes the bar away; the next update() draws it again.
  void erase();

  /// The bar as text, without the control characters around it.
  static std::string render(const std::string& label, std::int64_t done, std::int64_t total,
                            double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool on_terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
};

}  // namespace sparsesync
