// The floating-point environment of a thread: rounding mode, flush-to-zero.
#pragma once

#include <cfenv>

namespace sparsesync {

/// Sets the calling thread's default floating-point environment for its lifetime: denormals are
/// kept, results are rounded to nearest. A program may have changed its own (flush-to-zero is
/// common), and its sums would then differ in bits from those of the other workers.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment(DefaultFloatEnvironment&&) = delete;
  DefaultFloatEnvironment& operator=(DefaultFloatEnvironment&&) = delete;

 private:
  std::fenv_t callers_{};
};

}  // namespace sparsesync
