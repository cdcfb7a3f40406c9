// Text from outside (files, names, other workers) as it may be shown to people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sparsesync {

/// How printable() treats length and line ends.
struct PrintableOptions {
  std::size_t longest = std::string_view::npos;  // bytes of the text that are shown; then "..."
  bool keeps_line_ends = false;
};

/// Escapes what a terminal obeys or does not show: control characters (C0, C1 and DEL),
/// bidirectional overrides and marks, other invisible characters, and bytes that are not UTF-8.
/// These become \\xNN, \\uNNNN or \\UNNNNNNNN; the rest stays as it is. Never cuts a character in
/// two.
std::string printable(std::string_view text, PrintableOptions options = {});

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

/// Makes `text` printable and cuts it after 120 bytes: names in files are not trusted to fit on the
/// one line that an error has.
std::string shortened(std::string_view text);

/// Puts shortened text between quotation marks: a name, or a path.
std::string in_quotes(std::string_view text);

}  // namespace sparsesync
