// CPU implementations of the index codes, and the bit strings that some codes use.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/base/error.h"
#include "kernels/base/views.h"
#include "kernels/indices/index_code.h"

namespace sparsesync::cpu {

// encode() and decode() of each code, after the sizes have been checked. Each code has its own
// file.
void encode_as(Coo, IndexRange range, std::span<const Index> indices, std::span<std::byte> out);
void encode_as(EliasFano, IndexRange range, std::span<const Index> indices,
               std::span<std::byte> out);
void encode_as(Bitmap, IndexRange range, std::span<const Index> indices, std::span<std::byte> out);
void encode_as(All, IndexRange range, std::span<const Index> indices, std::span<std::byte> out);

void decode_as(Coo, IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices);
void decode_as(EliasFano, IndexRange range, std::span<const std::byte> bytes,
               std::span<Index> indices);
void decode_as(Bitmap, IndexRange range, std::span<const std::byte> bytes,
               std::span<Index> indices);
void decode_as(All, IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices);

/// Loads 8 bytes as a little-endian number.
inline std::uint64_t load_whole_word(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Loads up to 8 bytes at `offset` as a little-endian number. Bytes past the end read as 0.
inline std::uint64_t load_word(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t word = 0;
  if (offset + sizeof(word) <= bytes.size()) return load_whole_word(bytes.data() + offset);
  if (offset < bytes.size()) {
    std::memcpy(&word, bytes.data() + offset, bytes.size() - offset);
  }
  return word;
}

/// Sets a bit. Bits are numbered from the lowest bit of each byte.
inline void set_bit(std::span<std::byte> bits, std::uint64_t bit) {
  bits[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
}

/// Calls found(bit) for each set bit, in increasing order, at most `count` times.
/// @param code   name of the index code, for errors
/// @param count  announced number of bits
/// @throws CorruptDataError if the number of set bits is not `count`
template <typename Found>
void for_each_bit(const char* code, std::span<const std::byte> bits, std::size_t count,
                  Found&& found) {
  std::size_t left = count;
  const auto of_word = [&](std::size_t offset, std::uint64_t word) {
    for (; word != 0; word &= word - 1) {
      if (left == 0) {
        throw CorruptDataError(
            fmt::format("{} code: more indices than the {} announced", code, count));
      }
      --left;
      found(offset * 8 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  };
  // Full words need no bounds check. If few bits are set, the scan of the words takes most of the
  // time.
  const std::size_t whole = bits.size() / sizeof(std::uint64_t) * sizeof(std::uint64_t);
  for (std::size_t offset = 0; offset < whole; offset += sizeof(std::uint64_t)) {
    of_word(offset, load_whole_word(bits.data() + offset));
  }
  of_word(whole, load_word(bits, whole));
  if (left != 0) {
    throw CorruptDataError(
        fmt::format("{} code: only {} of the {} announced indices", code, count - left, count));
  }
}

}  // namespace sparsesync::cpu
