// Floating-point modes that a program may have set for itself.
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace sparsesync::testing {

#ifdef __SSE2__
inline constexpr bool kHasFlushToZero = true;
#else
inline constexpr bool kHasFlushToZero = false;
#endif

/// Flushes denormals to zero in this thread during its lifetime, like
/// torch.set_flush_denormal(True), and rounds towards zero.
class [[nodiscard]] FlushToZero {
 public:
#ifdef __SSE2__
  FlushToZero() : before_(_mm_getcsr()) {
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    _mm_setcsr(_mm_getcsr() | 0x0040U);  // treats denormals as zeros
    _MM_SET_ROUNDING_MODE(_MM_ROUND_TOWARD_ZERO);
  }
  ~FlushToZero() {
    _mm_setcsr(before_);
  }
#else
  FlushToZero() = default;
  ~FlushToZero() = default;
#endif
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
  FlushToZero(FlushToZero&&) = delete;
  FlushToZero& operator=(FlushToZero&&) = delete;

 private:
#ifdef __SSE2__
  unsigned before_;
#endif
};

}  // namespace sparsesync::testing
