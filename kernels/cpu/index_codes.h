// The CPU bodies of the index codes, and the strings of bits that some are made of.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/error.h"
#include "kernels/index_code.h"
#include "kernels/views.h"

namespace sparsesync::cpu {

// What encode() and decode() do for each code, after checking the number of bytes.
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

/// Up to 8 bytes at `offset` as a little-endian number; bytes past the end read as 0.
inline std::uint64_t load_word(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t word = 0;
  if (offset + sizeof(word) <= bytes.size()) {
    std::memcpy(&word, bytes.data() + offset, sizeof(word));
  } else if (offset < bytes.size()) {
    std::memcpy(&word, bytes.data() + offset, bytes.size() - offset);
  }
  return word;
}

/// Bits count from the lowest of each byte on.
inline void set_bit(std::span<std::byte> bits, std::uint64_t bit) {
  bits[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
}

/// Calls found(bit) for each bit that is set, in increasing order; never more than `count` times.
/// @param code   the name of the index code, for errors
/// @param count  how many are announced
/// @throws CorruptDataError if there are not exactly `count`
template <typename Found>
void for_each_bit(const char* code, std::span<const std::byte> bits, std::size_t count,
                  Found&& found) {
  std::size_t left = count;
  for (std::size_t offset = 0; offset < bits.size(); offset += 8) {
    for (std::uint64_t word = load_word(bits, offset); word != 0; word &= word - 1) {
      if (left == 0) {
        throw CorruptDataError(
            fmt::format("{} code: more than the {} indices announced", code, count));
      }
      --left;
      found(offset * 8 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }
  if (left != 0) {
    throw CorruptDataError(
        fmt::format("{} code: {} indices of {} announced", code, count - left, count));
  }
}

}  // namespace sparsesync::cpu
