// Tests for zero elements and rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/bits.h"
#include "kernels/rows/row.h"

namespace sparsesync::cpu {

/// Returns the bits that make a T nonzero, repeated over a word: all bits but the sign for
/// floating-point types, all bits for integers.
template <typename T>
constexpr std::uint64_t nonzero_bits() {
  if constexpr (std::is_integral_v<T>) return ~std::uint64_t{0};
  constexpr unsigned kBits = 8 * sizeof(T);
  std::uint64_t bits = 0;
  for (unsigned at = 0; at < 64; at += kBits) bits |= low_mask(kBits - 1) << at;
  return bits;
}

/// Returns whether `count` elements are all zero. Reads all of them, because a branch per element
/// would cost more. Each cache line takes few instructions, so that the processor can look many
/// lines ahead.
template <typename T>
bool are_zero(const std::byte* elements, Index count) {
  constexpr auto kOfWord = static_cast<Index>(sizeof(std::uint64_t) / sizeof(T));
  constexpr Index kOfLine = 8;
  const Index words = count / kOfWord;
  Index i = 0;
  std::array<std::uint64_t, kOfLine> line{};
  for (; i + kOfLine <= words; i += kOfLine) {
    for (Index k = 0; k < kOfLine; ++k) {
      line[static_cast<std::size_t>(k)] |= load<std::uint64_t>(elements, i + k);
    }
  }
  std::uint64_t any = 0;
  for (const std::uint64_t word : line) any |= word;
  for (; i < words; ++i) any |= load<std::uint64_t>(elements, i);
  bool zero = (any & nonzero_bits<T>()) == 0;
  for (i = words * kOfWord; i < count; ++i) {
    zero = zero && ValueTraits<T>::is_zero(load<T>(elements, i));
  }
  return zero;
}

/// Returns a mask of the nonzero rows among at most 64 rows of `width` elements: bit i is row i.
/// There is no branch per element, because it would be unpredictable for narrow rows.
template <typename T>
std::uint64_t nonzero_rows(const std::byte* rows, Index count, Index width) {
  std::uint64_t nonzero = 0;
  for (Index row = 0; row < count; ++row) {
    bool zero = true;
    for (Index i = 0; i < width; ++i) {
      zero &= ValueTraits<T>::is_zero(load<T>(rows, row * width + i));
    }
    nonzero |= std::uint64_t{!zero} << static_cast<unsigned>(row);
  }
  return nonzero;
}

/// Calls found(row) for each nonzero row, in order. There are at most 64 rows, and at least one is
/// nonzero.
template <typename T, typename Found>
void find_nonzero(const std::byte* rows, Index count, Index width, Found&& found) {
  std::uint64_t left = count == 1 ? 1 : nonzero_rows<T>(rows, count, width);
  for (; left != 0; left &= left - 1) found(Index{__builtin_ctzll(left)});
}

}  // namespace sparsesync::cpu
