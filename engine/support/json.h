// JSON output of the engine and its commands, and the parts that several of them share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/gradient.h"

namespace sparsesync {

/// Returns the provenance of a result, as names and values: version, commit, compiler, build type,
/// CPU model, cores, operating system, date (UTC).
std::vector<std::pair<std::string, std::string>> provenance();

/// Returns an estimate of the machine's available memory, in bytes. Returns the largest int64 if
/// the system reports none.
std::int64_t available_memory();

/// A JSON value whose keys keep the order in which they were added.
using Json = nlohmann::ordered_json;

/// Returns the value, or null if there is none.
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// Returns provenance() as a JSON object.
inline Json provenance_json() {
  Json json;
  for (const auto& [name, value] : provenance()) json[name] = value;
  return json;
}

/// Returns the list `tensors` of JSON about a trace.
inline Json tensors_json(const std::vector<TensorSpec>& tensors) {
  Json json = Json::array();
  for (const TensorSpec& tensor : tensors) {
    json.push_back({{"name", tensor.name},
                    {"rows", tensor.rows},
                    {"width", tensor.width},
                    {"dtype", name_of(tensor.dtype)}});
  }
  return json;
}

/// Formats JSON with an indentation of 2 spaces. Invalid UTF-8 is replaced.
inline std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sparsesync
