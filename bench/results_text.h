// Writes the JSON of the benchmark tables with one line per row. bench/results_file.py does the
// same for scripts.
#pragma once

#include <string>

#include "engine/support/json.h"

namespace sparsesync {

/// Formats a JSON object with one line per member, and one line per element of a member that is a
/// list of objects. Replaces bytes that are not valid UTF-8.
inline std::string results_text(const Json& object) {
  std::string text = "{";
  const char* before_member = "\n ";
  for (const auto& [key, value] : object.items()) {
    text += before_member + Json(key).dump() + ": ";
    before_member = ",\n ";
    if (!value.is_array() || value.empty() || !value.front().is_object()) {
      text += value.dump(-1, ' ', false, Json::error_handler_t::replace);
      continue;
    }
    const char* before_element = "[\n  ";
    for (const Json& element : value) {
      text += before_element + element.dump(-1, ' ', false, Json::error_handler_t::replace);
      before_element = ",\n  ";
    }
    text += "\n ]";
  }
  return text + "\n}";
}

}  // namespace sparsesync
