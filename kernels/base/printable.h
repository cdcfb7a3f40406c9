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

}  // namespace sparsesync
