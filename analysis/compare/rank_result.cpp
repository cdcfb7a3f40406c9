#include "analysis/compare/rank_result.h"

#include "engine/support/json.h"

namespace sparsesync {
namespace {

template <typename T>
std::optional<T> if_any(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<T>(json.get<T>());
}

}  // namespace

std::string text_of(const WorkerRecord& record) {
  Json json{{"steps", Json::array()},          {"difference", or_null(record.first_difference)},
            {"memory", record.memory_bytes},   {"choices", Json::array()},
            {"imbalances", Json::array()},     {"refusal", or_null(record.refusal)},
            {"scheme", record.variant.scheme}, {"pattern", nullptr},
            {"rounds", record.rounds}};
  if (record.variant.pattern) json["pattern"] = name_of(*record.variant.pattern);
  for (const StepRecord& step : record.steps) {
    json["steps"].push_back({(step.end - step.begin).count(), step.bytes_sent, step.bytes_received,
                             step.messages_sent, step.index_bytes_sent, step.non_finite,
                             step.bits});
  }
  for (const SpaceChoice& choice : record.choices) {
    json["choices"].push_back(
        {choice.index_code, or_null(choice.row_groups), or_null(choice.column_slices)});
  }
  for (const Imbalance& imbalance : record.imbalances) {
    json["imbalances"].push_back({imbalance.push, imbalance.pull});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

WorkerRecord record_from(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    WorkerRecord record;
    for (const Json& step : json.at("steps")) {
      record.steps.push_back(
          {Clock::time_point{}, Clock::time_point{Clock::duration(step.at(0).get<std::int64_t>())},
           step.at(1), step.at(2), step.at(3), step.at(4), step.at(5), step.at(6)});
    }
    record.first_difference = if_any<std::string>(json.at("difference"));
    record.memory_bytes = json.at("memory");
    for (const Json& choice : json.at("choices")) {
      record.choices.push_back(
          {choice.at(0), if_any<Index>(choice.at(1)), if_any<Index>(choice.at(2))});
    }
    for (const Json& imbalance : json.at("imbalances")) {
      record.imbalances.push_back({imbalance.at(0), imbalance.at(1)});
    }
    record.variant.scheme = json.at("scheme");
    record.rounds = json.at("rounds");
    if (const auto pattern = if_any<std::string>(json.at("pattern"))) {
      record.variant.pattern = communication_named(*pattern);
    }
    record.refusal = if_any<std::string>(json.at("refusal"));
    return record;
  } catch (const Json::exception& error) {
    throw ProtocolError(std::string("cannot parse a worker's record: ") + error.what());
  }
}

}  // namespace sparsesync
