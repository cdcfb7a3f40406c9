// Helpers for tests of index codes: convert indices to bytes and back, between guard bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/indices/index_code.h"

namespace sparsesync {

inline constexpr auto kGuard = std::byte{0xA5};
inline constexpr std::size_t kGuardBytes = 16;

/// Encodes `indices` at an odd address between guard bytes, and checks the guards.
inline std::vector<std::byte> encoded(const Context& context, IndexCode code, IndexRange range,
                                      const std::vector<Index>& indices) {
  const auto size = static_cast<std::size_t>(
      encoded_bytes(code, range.size(), static_cast<Index>(indices.size())));
  std::vector<std::byte> buffer(size + 2 * kGuardBytes + 1, kGuard);
  const std::span<std::byte> out = std::span(buffer).subspan(kGuardBytes + 1, size);
  encode(context, code, range, indices, out);
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  EXPECT_TRUE(std::all_of(buffer.begin(), buffer.begin() + kGuardBytes + 1, is_guard))
      << "encode() wrote before the output";
  EXPECT_TRUE(std::all_of(buffer.end() - kGuardBytes, buffer.end(), is_guard))
      << "encode() wrote past the output";
  return {out.begin(), out.end()};
}

/// Decodes `bytes` from an odd address at the very end of their memory block.
inline std::vector<Index> decoded(const Context& context, IndexCode code, IndexRange range,
                                  std::span<const std::byte> bytes, Index count) {
  std::vector<std::byte> buffer(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), buffer.begin() + 1);
  std::vector<Index> indices(static_cast<std::size_t>(count), -1);
  decode(context, code, range, std::span<const std::byte>(buffer).subspan(1), indices);
  return indices;
}

}  // namespace sparsesync
