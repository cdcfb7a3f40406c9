// A progress bar for work that takes more than two seconds.
#include "analysis/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "analysis/cli/units.h"

namespace sparsesync {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(std::string label)
    : label_(std::move(label)),
      on_terminal_(isatty(STDERR_FILENO) == 1),
      next_draw_(start_ + kPatience) {}

Progress::~Progress() {
  erase();
}

void Progress::update(std::int64_t done, std::int64_t total) {
  if (!on_terminal_) return;
  const auto now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kInterval;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string bar = render(label_, done, total, seconds);
  std::fprintf(stderr, "\r\x1b[K%s", bar.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::erase() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

std::string Progress::render(const std::string& label, std::int64_t done, std::int64_t total,
                             double seconds) {
  constexpr std::int64_t kCells = 30;
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 1.0;
  const auto full = static_cast<std::size_t>(share * static_cast<double>(kCells));
  std::string text = fmt::format("{} [{}{}] {:3.0f}%  {}", label, std::string(full, '#'),
                                 std::string(static_cast<std::size_t>(kCells) - full, '.'),
                                 100 * share, format_seconds(seconds));
  if (share > 0 && share < 1)
    text += fmt::format(", {} left", format_seconds(seconds / share - seconds));
  return text;
}

}  // namespace sparsesync
