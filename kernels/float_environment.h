// How floating-point numbers are computed with: the modes of the processor, which are each
// thread's.
#pragma once

#include <cfenv>

namespace sparsesync {

/// Computes with the default modes while it lives: denormals are kept, results are rounded to the
/// nearest. A program may have set others for itself (flush-to-zero is a common one); sums would
/// then differ from those of workers that have not, where all are to have the same bits.
class [[nodiscard]] DefaultFloatEnvironment {
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
