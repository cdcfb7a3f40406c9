// Reads untrusted JSON. Types and ranges are checked, and errors name their location.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/support/input_file.h"

namespace sparsesync {

/// A value in a JSON text, which it keeps alive. Accessors throw InputError if the value has
/// another type.
class InputJson {
 public:
  /// Parses strict JSON in O(n log n) time. The text must be UTF-8 without a byte order mark or
  /// NUL, and have nothing after the value. Objects must not repeat a name. Values may nest 64
  /// levels deep.
  /// @param place  location of the text
  /// @throws InputError if the text is anything else
  static InputJson parse(std::string_view text, const InputPlace& place);

  bool is_null() const { return json_->is_null(); }
  std::string text() const;
  double positive() const;
  double not_negative() const;

  /// Returns the items of a list.
  /// @param count  required number of items; no value: any number
  /// @throws InputError if the value is not such a list
  std::vector<InputJson> list(std::optional<std::size_t> count = std::nullopt) const;

  /// Returns a whole number in [minimum, maximum].
  /// @throws InputError if the value is not such a number
  template <typename Integer>
  Integer whole(Integer minimum = 0, Integer maximum = std::numeric_limits<Integer>::max()) const {
    const auto is_in_range = [&](auto number) {
      return std::cmp_greater_equal(number, minimum) && std::cmp_less_equal(number, maximum);
    };
    const bool good = json_->is_number_unsigned()
                          ? is_in_range(json_->get<std::uint64_t>())
                          : json_->is_number_integer() && is_in_range(json_->get<std::int64_t>());
    if (!good) refuse_but_for(fmt::format("a whole number from {} to {}", minimum, maximum));
    return json_->get<Integer>();
  }

  /// Whether an object has a member of that name.
  /// @throws InputError if the value is not an object
  bool has(std::string_view name) const;
  /// Returns a member of an object.
  /// @throws InputError if the member is missing, or the value is not an object
  InputJson member(std::string_view name) const;
  /// Returns all members of an object, for objects whose names the file chooses.
  /// @throws InputError if the value is not an object
  std::vector<std::pair<std::string, InputJson>> members() const;

  /// Reports an error at the value's location: see InputPlace::refuse().
  [[noreturn]] void refuse(std::string_view what) const { place_.refuse(what); }

 private:
  using Json = nlohmann::json;

  InputJson(InputPlace place, std::shared_ptr<const Json> json)
      : place_(std::move(place)), json_(std::move(json)) {}

  /// Returns a part of this value.
  InputJson part(std::string_view name, const Json& json) const {
    return {place_.at(name), {json_, &json}};
  }
  /// Throws an error that names the value's type and the required one.
  [[noreturn]] void refuse_but_for(std::string_view wanted) const;

  InputPlace place_;
  std::shared_ptr<const Json> json_;
};

}  // namespace sparsesync
