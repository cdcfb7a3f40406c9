// Division by an invariant number: a multiplication and a correction replace the slow division of a
// GPU.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace sparsesync::cuda {

/// Divides 32-bit or 64-bit words by a number below 2^31 or 2^63.
template <typename Word>
class Divider {
 public:
  /// @param divisor  0 is treated as 1, for cases that divide nothing
  explicit Divider(Word divisor)
      : divisor_(std::max<Word>(divisor, 1)), reciprocal_(~Word{0} / divisor_) {}

  /// A number as quotient * divisor + remainder.
  struct Division {
    Word quotient;
    Word remainder;
  };
  /// Computes the same as `/` and `%`.
  __device__ Division divide(Word number) const {
    // The reciprocal is rounded down, by less than 1 in 2^32 or 2^64. A quotient is therefore at
    // most 1 too small.
    const Word quotient = upper_half(number, reciprocal_);
    const Word rest = number - quotient * divisor_;
    return rest < divisor_ ? Division{quotient, rest} : Division{quotient + 1, rest - divisor_};
  }

 private:
  __device__ static std::uint32_t upper_half(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(a) * b >> 32U);
  }
  __device__ static std::uint64_t upper_half(std::uint64_t a, std::uint64_t b) {
    return __umul64hi(a, b);
  }

  Word divisor_;
  Word reciprocal_;
};

}  // namespace sparsesync::cuda
