// JSON as the engine and its commands write it: what several of them have in theirs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/gradient.h"

namespace sparsesync {

/// The provenance of a result, as names and values: version, commit, compiler, build type,
/// processor, cores, operating system, date (UTC).
std::vector<std::pair<std::string, std::string>> provenance();

/// Bytes of memory that this machine can give to new work; nothing is promised.
std::int64_t available_memory();

/// Keys stand in the order in which they were added.
using Json = nlohmann::ordered_json;

/// The value, or JSON's null.
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// What a result needs to be measured again: provenance.h.
inline Json provenance_json() {
  Json json;
  for (const auto& [name, value] : provenance()) json[name] = value;
  return json;
}

/// The list `tensors` of JSON that is about a trace.
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

/// Indented by two; what is not UTF-8 is replaced.
inline std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sparsesync
