// Divisions by a number that stays: a product and a correction in place of a GPU's long division.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace sparsesync::cuda {

/// Divides words of 32 or 64 bits by a number below 2^31 or 2^63.
template <typename Word>
class Divider {
 public:
  /// @param divisor  0 is taken for 1: where nothing is divided
  explicit Divider(Word divisor)
      : divisor_(std::max<Word>(divisor, 1)), reciprocal_(~Word{0} / divisor_) {}

  /// Of a number: quotient * divisor + remainder.
  struct Division {
    Word quotient;
    Word remainder;
  };
  /// The same as `/` and `%`.
  __device__ Division divide(Word number) const {
    // The reciprocal is rounded down, by less than 1 of 2^32 or 2^64: a quotient is at most 1 too
    // small.
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
