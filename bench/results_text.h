// The JSON of the benches' tables, a line for each row. bench/results_file.py is the same for
// scripts.
#pragma once

#include <string>

#include "engine/support/json.h"

namespace sparsesync {

/// Formats a JSON object with a line for each member, and for each element of a member that is a
/// list of objects. What is not UTF-8 is replaced.
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
