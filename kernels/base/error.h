// Contract checks, and the errors that users see.
#pragma once

#include <string>
#include <type_traits>

#include "sparsesync/errors.h"  // IWYU pragma: export

namespace sparsesync::detail {
[[noreturn]] void contract_broken(const char* file, int line, const char* expression,
                                  const std::string& left, const std::string& right);
inline std::string operand(bool value) {
  return value ? "true" : "false";
}
template <typename Number>
requires std::is_arithmetic_v<Number> std::string operand(Number value) {
  return std::to_string(value);
}
inline std::string operand(const std::string& value) {
  return "'" + value + "'";
}
// Without this overload, a string literal would print as a bool.
inline std::string operand(const char* value) {
  return operand(std::string(value));
}
}  // namespace sparsesync::detail

/// Checks a contract and prints both operands when it is broken.
/// @throws ContractError
#define SPARSESYNC_EXPECT(left, op, right)                                                \
  do {                                                                                    \
    const auto expect_left = (left);                                                      \
    const auto expect_right = (right);                                                    \
    if (!(expect_left op expect_right)) {                                                 \
      ::sparsesync::detail::contract_broken(__FILE__, __LINE__, #left " " #op " " #right, \
                                            ::sparsesync::detail::operand(expect_left),   \
                                            ::sparsesync::detail::operand(expect_right)); \
    }                                                                                     \
  } while (false)
