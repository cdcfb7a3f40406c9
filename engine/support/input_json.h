// JSON that is not trusted: every kind and range is checked, and what is wrong is said by its
// place.
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

/// A value in a JSON text, which it keeps alive. Who asks for a kind that it is not throws
/// InputError.
class InputJson {
 public:
  /// Parses strict JSON in time O(n log n): UTF-8 without a byte order mark, no name twice in an
  /// object, values at most 64 deep, nothing after the end, no NUL.
  /// @param place  of the whole text
  /// @throws InputError if it is anything else
  static InputJson parse(std::string_view text, const InputPlace& place);

  bool is_null() const { return json_->is_null(); }
  std::string text() const;
  double positive() const;
  double not_negative() const;

  /// The items of a list.
  /// @param count  how many they should be; nothing: any number
  /// @throws InputError if it is not that
  std::vector<InputJson> list(std::optional<std::size_t> count = std::nullopt) const;

  /// A whole number in [minimum, maximum].
  /// @throws InputError if it is not one
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
  /// @throws InputError if this is no object
  bool has(std::string_view name) const;
  /// The member of an object.
  /// @throws InputError if there is none, or this is no object
  InputJson member(std::string_view name) const;
  /// All members of an object, by name, where the file chooses the names.
  /// @throws InputError if this is no object
  std::vector<std::pair<std::string, InputJson>> members() const;

  /// InputPlace::refuse() of its place.
  [[noreturn]] void refuse(std::string_view what) const { place_.refuse(what); }

 private:
  using Json = nlohmann::json;

  InputJson(InputPlace place, std::shared_ptr<const Json> json)
      : place_(std::move(place)), json_(std::move(json)) {}

  /// A part of this value.
  InputJson part(std::string_view name, const Json& json) const {
    return {place_.at(name), {json_, &json}};
  }
  /// Says what it is, and what it should be.
  [[noreturn]] void refuse_but_for(std::string_view wanted) const;

  InputPlace place_;
  std::shared_ptr<const Json> json_;
};

}  // namespace sparsesync
