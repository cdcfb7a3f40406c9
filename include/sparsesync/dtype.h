// Element types of values, their sizes and their names.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparsesync {

/// Names an element type.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64 };

/// All element types, in the order in which messages and `--help` list them.
inline constexpr std::array kDTypes{DType::f32,  DType::f64, DType::f16,
                                    DType::bf16, DType::i32, DType::i64};

/// Stores an IEEE-754 binary16 number as its bits.
struct f16 {
  std::uint16_t bits = 0;
};

/// Stores a bfloat16 number as its bits: the upper half of an IEEE-754 binary32.
struct bf16 {
  std::uint16_t bits = 0;
};

/// Returns the size of one element in bytes.
constexpr std::int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      break;
  }
  return 8;
}

/// Returns the name used in options, JSON and messages, such as "f32" or "bf16".
std::string_view name_of(DType dtype);

/// Returns the names of all element types, with `separator` between them.
std::string dtype_names(std::string_view separator);

/// Returns the element type with this name.
/// @throws InputError if the name is unknown; the message lists the valid names
DType dtype_named(std::string_view name);

}  // namespace sparsesync
