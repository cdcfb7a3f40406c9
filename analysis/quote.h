// How a text from outside is shown in a message: on one line, printable, and short.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace sparsesync {

/// `text` with control characters as \\xNN and cut after 120 bytes: names in files are not trusted
/// to fit on the one line that an error has.
inline std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool shown = byte >= 0x20U && byte != 0x7FU;
    out += shown ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  if (text.size() > kLongest) out += "...";
  return out;
}

/// The same between quotation marks: a name, or a path.
inline std::string in_quotes(std::string_view text) {
  return fmt::format("'{}'", printable(text));
}

}  // namespace sparsesync
