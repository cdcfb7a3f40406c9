// Element types of values: their sizes and names.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparsesync {

/// Names an element type.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64 };

/// All of them, in the order in which they are listed to people.
inline constexpr std::array kDTypes{DType::f32,  DType::f64, DType::f16,
                                    DType::bf16, DType::i32, DType::i64};

/// IEEE-754 binary16 as its bits.
struct f16 {
  std::uint16_t bits = 0;
};

/// bfloat16 as its bits: the upper half of an IEEE-754 binary32.
struct bf16 {
  std::uint16_t bits = 0;
};

/// Returns the bytes of one element.
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

/// Returns the name in options, JSON and messages: "f32", "bf16", ...
std::string_view name_of(DType dtype);

/// Returns the names of all of them, with `separator` between.
std::string dtype_names(std::string_view separator);

/// Returns the element type of that name.
/// @throws InputError if there is none; the text lists those that exist
DType dtype_named(std::string_view name);

}  // namespace sparsesync
