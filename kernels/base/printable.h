// Escapes text from outside (files, names, other workers) before it is shown to people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sparsesync {

/// Length limit and line ends of printable().
struct PrintableOptions {
  // Bytes of the text to show. "..." follows if more is left.
  std::size_t longest = std::string_view::npos;
  bool keeps_line_ends = false;
};

/// Escapes characters that a terminal interprets or does not show:
/// - control characters (C0, C1 and DEL)
/// - bidirectional overrides and marks
/// - other invisible characters
/// - bytes that are not UTF-8
///
/// They become \\xNN, \\uNNNN or \\UNNNNNNNN. All other text stays unchanged. Never splits a
/// character.
std::string printable(std::string_view text, PrintableOptions options = {});

/// Returns the longest prefix of `text` of at most `bytes` bytes that ends with a complete UTF-8
/// character. Text in another encoding is cut after `bytes` bytes.
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

/// Makes `text` printable and truncates it after 120 bytes, because an error has one line and names
/// in files may be long.
std::string shortened(std::string_view text);

/// Puts shortened() text in quotation marks. Use it for names and paths.
std::string in_quotes(std::string_view text);

}  // namespace sparsesync
