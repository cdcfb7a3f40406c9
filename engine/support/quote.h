// How a text from outside is shown in a message: on one line, printable, and short.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/base/printable.h"

namespace sparsesync {

/// Makes `text` printable and cuts it after 120 bytes: names in files are not trusted to fit on the
/// one line that an error has.
inline std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  return printable(text, {.longest = kLongest});
}

/// The same between quotation marks: a name, or a path.
inline std::string in_quotes(std::string_view text) {
  return fmt::format("'{}'", shortened(text));
}

}  // namespace sparsesync
