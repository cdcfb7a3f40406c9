// Cutting a text to so many bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace sparsesync {

/// Returns the longest beginning of `text` of at most `bytes` bytes that ends with a whole
/// character of UTF-8. A text in another encoding is cut at `bytes`.
inline std::string_view whole_characters(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  constexpr std::size_t kMostContinuations = 3;
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  std::size_t end = bytes;
  while (end > 0 && bytes - end < kMostContinuations && continues(end)) --end;
  return text.substr(0, continues(end) ? bytes : end);
}

}  // namespace sparsesync
