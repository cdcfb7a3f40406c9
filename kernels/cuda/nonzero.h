// Looking for what is not zero, 16 bytes at a time, wherever elements lie. For kernel
// sources only.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

/// The bits by which elements are not zero, of 8 bytes at a multiple of 8: all but the signs, which
/// integers lack.
/// @param elements  where some of them begin; at any address
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

/// 16 bytes, the lowest ones first.
struct Chunk {
  static constexpr Index kBytes = 16;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

/// The bits that tell whether elements are zero.
__device__ inline Chunk masked(const uint4& words, std::uint64_t mask) {
  return {(words.x | std::uint64_t{words.y} << 32U) & mask,
          (words.z | std::uint64_t{words.w} << 32U) & mask};
}

/// Whether some of the bytes [begin, end) of a chunk, 0 <= begin < end <= 16, are not zero.
__device__ inline bool is_nonzero(const Chunk& chunk, int begin, int end) {
  const auto below = [](int byte) { return byte <= 0 ? 0 : low_mask(8 * (byte < 8 ? byte : 8)); };
  const std::uint64_t low = chunk.low & below(end) & ~below(begin);
  const std::uint64_t high = chunk.high & below(end - 8) & ~below(begin - 8);
  return (low | high) != 0;
}

namespace detail {
/// The chunk that begins `at` bytes behind `from`; what is not among its `bytes` bytes is 0.
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

/// Divides small numbers: 32-bit division takes five times as long.
class SmallDivisor {
 public:
  /// @param divisor  in [1, 2^20)
  explicit SmallDivisor(Index divisor)
      : reciprocal_((std::uint64_t{1} << kShift) / static_cast<std::uint64_t>(divisor) + 1) {}
  /// number / divisor.
  /// @param number  below 2^20: the reciprocal is too large by 1 at most, which adds 2^-20 at most
  __device__ unsigned divide(unsigned number) const {
    return static_cast<unsigned>(number * reciprocal_ >> kShift);
  }

 private:
  static constexpr unsigned kShift = 40;
  std::uint64_t reciprocal_;
};

/// Calls found(chunk, at) for each chunk at a multiple of 16 that is not zero, of `bytes` bytes
/// from `from` on; `at` is the distance of its first byte from there, which may be below 0. Bytes
/// beside those count as zero. Some chunks may be found twice. Called by all threads of the block.
/// @param mask  nonzero_bits(); the chunks have no others
template <typename Found>
__device__ void find_nonzero(const std::byte* from, Index bytes, std::uint64_t mask,
                             const Found& found) {
  constexpr int kInFlight = 4;  // 64 bytes a thread
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
    // Lanes that have found something go on together, whichever of their chunks it is in.
    for (; left != 0; left &= left - 1) {
      const unsigned lowest = left & (~left + 1);
      uint4 one{};
      for (unsigned k = 0; k < kInFlight; ++k) {
        // Not by an index, which would put the words into memory.
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
  // What does not fill a chunk.
  const bool has_first = threadIdx.x == 0 && begin > 0;
  const bool has_last = threadIdx.x == kBlock - 1 && end * Chunk::kBytes < skipped + bytes;
  if (has_first || has_last) {
    const Index at = (has_first ? 0 : end * Chunk::kBytes) - skipped;
    const Chunk part = detail::load_part(from, at, bytes, mask);
    if ((part.low | part.high) != 0) found(part, at);
  }
}

}  // namespace sparsesync::cuda
