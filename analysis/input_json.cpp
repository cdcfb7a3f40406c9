#include "analysis/input_json.h"

#include <set>

#include "analysis/quote.h"

namespace sparsesync {
namespace {

// Writing a value calls itself for each level: a text of 100,000 levels would overflow the stack.
constexpr int kDeepest = 100;

}  // namespace

InputJson InputJson::parse(std::string_view text, const InputPlace& place) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::optional<std::string> twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) place.refuse(fmt::format("nests values more than {} deep", kDeepest));
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto name = parsed.get<std::string>();
      if (!names.back().insert(name).second && !twice) twice = name;
    }
    return true;
  };
  std::shared_ptr<const Json> json;
  try {
    json = std::make_shared<const Json>(Json::parse(text.begin(), text.end(), watch));
  } catch (const Json::parse_error& error) {
    place.refuse(fmt::format("is not valid JSON (at byte {})", error.byte));
  } catch (const Json::exception&) {  // such as a number that no type holds
    place.refuse("is not valid JSON");
  }
  if (twice) place.refuse(fmt::format("has the name {} twice in one object", in_quotes(*twice)));
  return {place, std::move(json)};
}

std::string InputJson::text() const {
  if (!json_->is_string()) refuse_but_for("a text");
  return json_->get<std::string>();
}

double InputJson::positive() const {
  if (!json_->is_number() || json_->get<double>() <= 0) refuse_but_for("a number above 0");
  return json_->get<double>();
}

double InputJson::not_negative() const {
  if (!json_->is_number() || json_->get<double>() < 0) refuse_but_for("a number of 0 or more");
  return json_->get<double>();
}

std::vector<InputJson> InputJson::list(std::optional<std::size_t> count) const {
  if (!json_->is_array() || json_->size() != count.value_or(json_->size())) {
    refuse_but_for(count ? fmt::format("a list of {}", *count) : "a list");
  }
  std::vector<InputJson> items;
  for (const Json& item : *json_) items.push_back(part(fmt::format("[{}]", items.size()), item));
  return items;
}

bool InputJson::has(std::string_view name) const {
  if (!json_->is_object()) refuse_but_for("an object");
  return json_->contains(name);
}

InputJson InputJson::member(std::string_view name) const {
  if (!has(name)) place_.at(name).refuse("is missing");
  return part(name, *json_->find(name));
}

std::vector<std::pair<std::string, InputJson>> InputJson::members() const {
  if (!json_->is_object()) refuse_but_for("an object");
  std::vector<std::pair<std::string, InputJson>> members;
  for (const auto& [name, value] : json_->items()) {
    members.emplace_back(name, part(in_quotes(name), value));
  }
  return members;
}

void InputJson::refuse_but_for(std::string_view wanted) const {
  refuse(fmt::format("is {}, not {}", printable(json_->dump(-1, ' ', true)), wanted));
}

}  // namespace sparsesync
