#include "kernels/base/error.h"

#include <fmt/format.h>

#include <limits>

namespace sparsesync {

BudgetError::BudgetError(std::int64_t needed, std::int64_t budget, const std::string& what)
    : Error(
          needed == std::numeric_limits<std::int64_t>::max()
              ? fmt::format("{}: more bytes than can be counted, with a budget of {}", what, budget)
              : fmt::format(
                    "{}: {} bytes would be in use, the budget is {}: raise it (--memory, in "
                    "Python memory_bytes=, in C++ HostMemory)",
                    what, needed, budget)),
      needed_(needed),
      budget_(budget) {}

namespace detail {

void contract_broken(const char* file, int line, const char* expression, const std::string& left,
                     const std::string& right) {
  throw ContractError(
      fmt::format("{}:{}: expected {}, got {} and {}", file, line, expression, left, right));
}

}  // namespace detail
}  // namespace sparsesync
