// Bit tricks that the CPU and the GPU share.
#pragma once

#include <cstdint>

/// Marks arithmetic that the CPU and the GPU share: one text, the same bits on both.
#if defined(__CUDACC__)
#define SPARSESYNC_HOST_DEVICE __host__ __device__
#else
#define SPARSESYNC_HOST_DEVICE
#endif

namespace sparsesync {

/// Bits needed to write every number below `bound`: ceil(log2(bound)), 0 for a bound of 0 or 1.
SPARSESYNC_HOST_DEVICE constexpr int bit_width_below(std::uint64_t bound) {
  int bits = 0;
  for (std::uint64_t largest = bound > 0 ? bound - 1 : 0; largest != 0; largest >>= 1U) ++bits;
  return bits;
}

/// The lowest `bits` bits set; 0 <= bits <= 64.
SPARSESYNC_HOST_DEVICE constexpr std::uint64_t low_mask(int bits) {
  return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << static_cast<unsigned>(bits)) - 1;
}

/// a / b, rounded up; a >= 0, b > 0.
template <typename Integer>
SPARSESYNC_HOST_DEVICE constexpr Integer ceil_div(Integer a, Integer b) {
  return static_cast<Integer>(a / b + (a % b != 0 ? 1 : 0));
}

/// The least multiple that is not below `value`.
template <typename Integer>
SPARSESYNC_HOST_DEVICE constexpr Integer round_up(Integer value, Integer multiple) {
  return static_cast<Integer>(ceil_div(value, multiple) * multiple);
}

/// A well-mixed 64-bit number for each 64-bit number (the finalizer of SplitMix64: Steele, Lea,
/// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
SPARSESYNC_HOST_DEVICE constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

}  // namespace sparsesync
