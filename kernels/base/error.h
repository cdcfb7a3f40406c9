// The one way to report an error: a family that a caller can act on, and broken contracts.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace sparsesync {

/// What a caller can act on. The text is one line: what, where, how to mend it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Input that cannot be used: a file, an option, an index outside its tensor.
class InputError : public Error {
 public:
  using Error::Error;
};

/// A memory budget that would be exceeded. Nothing was allocated.
class BudgetError : public Error {
 public:
  /// @param needed bytes that would have been in use, or std::int64_t's maximum where not even
  ///               the size can be represented
  /// @param budget bytes that may be in use
  BudgetError(std::int64_t needed, std::int64_t budget, const std::string& what);
  std::int64_t needed() const { return needed_; }
  std::int64_t budget() const { return budget_; }

 private:
  std::int64_t needed_;
  std::int64_t budget_;
};

/// Bytes from the network or from a file that are not what they say. Nothing was used.
class CorruptDataError : public Error {
 public:
  using Error::Error;
};

/// A GPU that is not there, or does not do what it is told.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A GPU's memory, or memory that it reaches, that is not to be had. Nothing was allocated.
class DeviceMemoryError : public std::bad_alloc {
 public:
  // NOLINTNEXTLINE(bugprone-throw-keyword-missing): it is kept, not thrown
  explicit DeviceMemoryError(const std::string& what) : what_(what) {}
  const char* what() const noexcept override { return what_.what(); }

 private:
  // May be copied without a throw, as a string may not.
  std::runtime_error what_;
};

/// A broken contract: a bug in the caller or in the library, not a state of the world.
class ContractError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
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
inline std::string operand(const char* value) {  // which would else be taken for a bool
  return operand(std::string(value));
}
}  // namespace detail

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

}  // namespace sparsesync
