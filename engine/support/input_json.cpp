#include "engine/support/input_json.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/printable.h"

namespace sparsesync {
namespace {

// Our formats need less than a tenth of this depth. The JSON library recurses for each level, so a
// text with 100,000 levels would overflow the stack.
constexpr std::size_t kDeepest = 64;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Builds the value during parsing, and rejects excessive depth and repeated names. The library's
/// parser with a callback is quadratic in the number of an object's names.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Json = nlohmann::json;

  explicit Builder(const InputPlace& place) : place_(place) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Json& object = *open_.back();
    if (object.contains(name)) {
      place_.refuse(fmt::format("has the name {} twice in one object", in_quotes(name)));
    }
    member_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    place_.refuse(fmt::format("is not valid JSON (at byte {})", position));
  }

 private:
  Json& put(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    return *member_ = std::move(value);
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kDeepest) {
      place_.refuse(fmt::format("nests values more than {} deep", kDeepest));
    }
    open_.push_back(&put(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const InputPlace& place_;
  Json root_;
  std::vector<Json*> open_;  // unfinished lists and objects, outermost first
  Json* member_ = nullptr;   // target of the innermost object's next value
};

/// Formats a value for an error message. Lists and objects may be large and deep, so only their
/// type is shown.
std::string shown(const nlohmann::json& json) {
  if (json.is_object()) return "an object";
  if (json.is_array()) return fmt::format("a list of {}", json.size());
  return shortened(json.dump(-1, ' ', true));
}

}  // namespace

InputJson InputJson::parse(std::string_view text, const InputPlace& place) {
  if (text.starts_with(kByteOrderMark)) {
    place.refuse("begins with a byte order mark, which is not valid JSON (at byte 1)");
  }
  // The library treats a NUL as the end of the text and ignores the rest.
  if (const std::size_t end = text.find('\0'); end != std::string_view::npos) {
    place.refuse(fmt::format("is not valid JSON (at byte {})", end + 1));
  }
  Builder builder(place);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return {place, std::make_shared<const Json>(builder.take())};
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
  refuse(fmt::format("is {}, not {}", shown(*json_), wanted));
}

}  // namespace sparsesync
