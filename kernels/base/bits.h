// Bit arithmetic that the CPU and the GPU share.
#pragma once

#include <cstdint>

/// Compiles a function for the host and the device. Both then run the same source and get the same
/// bits.
#if defined(__CUDACC__)
#define SPARSESYNC_HOST_DEVICE __host__ __device__
#else
#define SPARSESYNC_HOST_DEVICE
#endif

namespace sparsesync {

/// Returns the number of bits that every number below `bound` fits into: ceil(log2(bound)), and 0
/// for a bound of 0 or 1.
SPARSESYNC_HOST_DEVICE constexpr int bit_width_below(std::uint64_t bound) {
  int bits = 0;
  for (std::uint64_t largest = bound > 0 ? bound - 1 : 0; largest != 0; largest >>= 1U) ++bits;
  return bits;
}

/// Returns a word whose lowest `bits` bits are set. 0 <= bits <= 64.
SPARSESYNC_HOST_DEVICE constexpr std::uint64_t low_mask(int bits) {
  return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << static_cast<unsigned>(bits)) - 1;
}

/// Returns a / b, rounded up. a >= 0, b > 0.
template <typename Integer>
SPARSESYNC_HOST_DEVICE constexpr Integer ceil_div(Integer a, Integer b) {
  return static_cast<Integer>(a / b + (a % b != 0 ? 1 : 0));
}

/// Returns the smallest multiple of `multiple` that is at least `value`.
template <typename Integer>
SPARSESYNC_HOST_DEVICE constexpr Integer round_up(Integer value, Integer multiple) {
  return static_cast<Integer>(ceil_div(value, multiple) * multiple);
}

/// Maps each 64-bit number to a well-mixed 64-bit number. This is the finalizer of SplitMix64
/// (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
SPARSESYNC_HOST_DEVICE constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

}  // namespace sparsesync
