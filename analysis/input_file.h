// Reading what is not trusted: whole files, and JSON in which every kind is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/error.h"

namespace sparsesync {

/// A file's bytes, in memory: a file that shrinks or changes later cannot hurt. The address of the
/// bytes stays the same when the object is moved.
class FileBytes {
 public:
  /// @throws InputError if the file cannot be read or is not a regular file
  static FileBytes read(const std::filesystem::path& path);
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// 'path' as messages show it: quoted, on one line.
std::string shown_path(const std::filesystem::path& path);

/// Strict JSON: UTF-8, no name twice in an object, nothing after the end.
/// @param where  names the text in messages, such as "'x.safetensors': its header"
/// @throws InputError
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// A whole number in [minimum, maximum], or nothing if `value` is not one.
std::optional<std::int64_t> whole_number(
    const nlohmann::json& value, std::int64_t minimum = 0,
    std::int64_t maximum = std::numeric_limits<std::int64_t>::max());

/// a·b, or nothing if it does not fit. Neither is negative.
inline std::optional<std::int64_t> checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace sparsesync
