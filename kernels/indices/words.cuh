// Accesses unaligned bytes as aligned 64-bit words, so that a warp reads and writes them at once.
// For the sources of the index codes only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/base/views.h"

namespace sparsesync::cuda {

inline constexpr Index kWordBytes = 8;
inline constexpr Index kWordBits = 64;

/// Returns the number of bytes between the preceding multiple of 8 and an address.
__host__ __device__ inline Index skew_of(const std::byte* at) {
  return static_cast<Index>(reinterpret_cast<std::uintptr_t>(at) % 8);
}

/// Loads the word at `at`, a multiple of 8, as a little-endian number. Bytes outside [begin, end)
/// are not read and count as 0.
__device__ inline std::uint64_t load_word(const std::byte* at, const std::byte* begin,
                                          const std::byte* end) {
  if (at >= begin && end - at >= kWordBytes) {
    return __ldg(reinterpret_cast<const std::uint64_t*>(at));
  }
  std::uint64_t word = 0;
  for (Index i = 0; i < kWordBytes; ++i) {
    if (at + i < begin || at + i >= end) continue;
    word |= static_cast<std::uint64_t>(at[i]) << static_cast<unsigned>(8 * i);
  }
  return word;
}

/// Stores the word at `at`, a multiple of 8. Bytes outside [begin, end) are not written, because
/// they may belong to another block.
__device__ inline void store_word(std::byte* at, std::uint64_t word, const std::byte* begin,
                                  const std::byte* end) {
  if (at >= begin && end - at >= kWordBytes) {
    *reinterpret_cast<std::uint64_t*>(at) = word;
    return;
  }
  for (Index i = 0; i < kWordBytes; ++i) {
    if (at + i < begin || at + i >= end) continue;
    at[i] = static_cast<std::byte>(word >> static_cast<unsigned>(8 * i) & 0xFFU);
  }
}

}  // namespace sparsesync::cuda
