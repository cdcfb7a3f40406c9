// Searches memory for nonzero elements, 16 bytes at a time, at any alignment. For kernel sources
// only.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

/// Returns the bits that make elements nonzero, for 8 bytes at a multiple of 8. Floating-point
/// types use all bits but the signs; integers use all bits.
/// @param elements  address of any element; may be unaligned
inline std::uint64_t nonzero_bits(DType dtype, const std::byte* elements) {
  const auto bytes = static_cast<unsigned>(element_bytes(dtype));
  std::uint64_t bits = ~std::uint64_t{0};
  if (!is_integer(dtype)) {
    for (unsigned sign = 8 * bytes - 1; sign < 64; sign += 8 * bytes) {
      bits ^= std::uint64_t{1} << sign;
    }
  }
  return std::rotl(bits, static_cast<int>(8 * (address_of(elements) % bytes)));
}

/// Sixteen bytes, lowest address first.
struct Chunk {
  static constexpr Index kBytes = 16;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

/// Returns the bits of a chunk that decide whether elements are zero.
__device__ inline Chunk masked(const uint4& words, std::uint64_t mask) {
  return {(words.x | std::uint64_t{words.y} << 32U) & mask,
          (words.z | std::uint64_t{words.w} << 32U) & mask};
}

/// Returns whether any of the bytes [begin, end) of a chunk is nonzero. 0 <= begin < end <= 16.
__device__ inline bool is_nonzero(const Chunk& chunk, int begin, int end) {
  const auto below = [](int byte) { return byte <= 0 ? 0 : low_mask(8 * (byte < 8 ? byte : 8)); };
  const std::uint64_t low = chunk.low & below(end) & ~below(begin);
  const std::uint64_t high = chunk.high & below(end - 8) & ~below(begin - 8);
  return (low | high) != 0;
}

namespace detail {
/// Loads the chunk that begins `at` bytes after `from`. Bytes outside the `bytes` bytes are 0.
__device__ inline Chunk load_part(const std::byte* from, Index at, Index bytes,
                                  std::uint64_t mask) {
  Chunk chunk;
  for (unsigned i = 0; i < Chunk::kBytes; ++i) {
    const Index byte = at + i;
    if (byte < 0 || byte >= bytes) continue;
    const std::uint64_t value = static_cast<std::uint64_t>(from[byte]) << (8 * (i % 8));
    (i < 8 ? chunk.low : chunk.high) |= value & mask;
  }
  return chunk;
}
}  // namespace detail

/// Divides small numbers with a multiplication, because 32-bit division takes five times as long.
class SmallDivisor {
 public:
  /// @param divisor  in [1, 2^20)
  explicit SmallDivisor(Index divisor)
      : reciprocal_((std::uint64_t{1} << kShift) / static_cast<std::uint64_t>(divisor) + 1) {}
  /// Returns number / divisor.
  /// @param number  below 2^20: the reciprocal is too large by at most 1, which adds at most 2^-20
  __device__ unsigned divide(unsigned number) const {
    return static_cast<unsigned>(number * reciprocal_ >> kShift);
  }

 private:
  static constexpr unsigned kShift = 40;
  std::uint64_t reciprocal_;
};

/// Calls found(chunk, at) for each nonzero chunk (16 aligned bytes) of the `bytes` bytes from
/// `from`. The offset `at` of the chunk's first byte from `from` may be negative. Bytes outside the
/// range count as zero. Some chunks may be found twice. All threads of the block call it.
/// @param mask  nonzero_bits(); the chunks that are passed contain only these bits
template <typename Found>
__device__ void find_nonzero(const std::byte* from, Index bytes, std::uint64_t mask,
                             const Found& found) {
  constexpr int kInFlight = 4;  // 64 bytes per thread
  const auto skipped = static_cast<Index>(reinterpret_cast<std::uintptr_t>(from) % Chunk::kBytes);
  const auto* const chunks = reinterpret_cast<const uint4*>(reinterpret_cast<std::uintptr_t>(from) -
                                                            static_cast<std::uintptr_t>(skipped));
  const Index begin = skipped == 0 ? 0 : 1;
  const Index end = (skipped + bytes) / Chunk::kBytes;
  for (Index first = begin + threadIdx.x; first < end; first += kInFlight * kBlock) {
    uint4 words[kInFlight] = {};
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kBlock < end) words[k] = __ldg(chunks + first + k * kBlock);
    }
    unsigned left = 0;
    for (int k = 0; k < kInFlight; ++k) {
      const Chunk chunk = masked(words[k], mask);
      left |= ((chunk.low | chunk.high) != 0 ? 1U : 0U) << static_cast<unsigned>(k);
    }
    // Lanes that have found a chunk continue together, even if it is a different one of their
    // chunks.
    for (; left != 0; left &= left - 1) {
      const unsigned lowest = left & (~left + 1);
      uint4 one{};
      for (unsigned k = 0; k < kInFlight; ++k) {
        // Select by mask: an index would move the words to local memory.
        const unsigned own = ~((lowest >> k & 1U) - 1);
        one.x |= words[k].x & own;
        one.y |= words[k].y & own;
        one.z |= words[k].z & own;
        one.w |= words[k].w & own;
      }
      const Index which = __ffs(static_cast<int>(lowest)) - 1;
      found(masked(one, mask), (first + which * kBlock) * Chunk::kBytes - skipped);
    }
  }
  // Bytes before the first and after the last full chunk.
  const bool has_first = threadIdx.x == 0 && begin > 0;
  const bool has_last = threadIdx.x == kBlock - 1 && end * Chunk::kBytes < skipped + bytes;
  if (has_first || has_last) {
    const Index at = (has_first ? 0 : end * Chunk::kBytes) - skipped;
    const Chunk part = detail::load_part(from, at, bytes, mask);
    if ((part.low | part.high) != 0) found(part, at);
  }
}

}  // namespace sparsesync::cuda
