// Whether elements are zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/bits.h"
#include "kernels/rows/row.h"

namespace sparsesync::cpu {

/// The bits by which a T is not zero: all but the sign, which integers lack. Repeated over a word.
template <typename T>
constexpr std::uint64_t nonzero_bits() {
  if constexpr (std::is_integral_v<T>) return ~std::uint64_t{0};
  constexpr unsigned kBits = 8 * sizeof(T);
  std::uint64_t bits = 0;
  for (unsigned at = 0; at < 64; at += kBits) bits |= low_mask(kBits - 1) << at;
  return bits;
}

/// Whether `count` elements are all zero. All are looked at: a branch for each would cost more. A
/// line of the cache at a time, by few instructions, so that the processor sees many lines ahead.
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

/// Which rows of `width` elements each are not zero: bit i is the row i of at most 64. Nothing
/// branches on an element: of narrow rows it is as good as chance which are zero.
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

/// Calls found(row) for each row that is not zero, in their order, of at most 64 that are not all
/// zero.
template <typename T, typename Found>
void find_nonzero(const std::byte* rows, Index count, Index width, Found&& found) {
  std::uint64_t left = count == 1 ? 1 : nonzero_rows<T>(rows, count, width);
  for (; left != 0; left &= left - 1) found(Index{__builtin_ctzll(left)});
}

}  // namespace sparsesync::cpu
