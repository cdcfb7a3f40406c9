// Row operations that the CPU implementations share, and the division of work on rows. Values in
// messages are unaligned, so elements are read and written with memcpy.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/threads.h"
#include "kernels/base/views.h"

namespace sparsesync::cpu {

/// Returns the smallest number of rows of this size that is worth waking a thread for.
inline Index row_grain(Index row_bytes) {
  constexpr Index kBytes = Index{1} << 16;
  return std::max<Index>(kBytes / std::max<Index>(row_bytes, 1), 1);
}

constexpr int kMostParts = 64;
/// A number per part of some work, for example its number of rows.
using PartCounts = std::array<Index, kMostParts>;

/// Returns the number of parts for work on rows of this size, at most kMostParts.
inline int row_parts(const Context& context, Index rows, Index row_bytes) {
  return std::min(part_count(context, rows, row_grain(row_bytes)), kMostParts);
}

/// Calls body(size), with a compile-time constant for common sizes. A copy or a sum of that size
/// then takes a few instructions, without a loop.
template <Index... usual, typename Body>
void with_constant(std::integer_sequence<Index, usual...>, Index size, Body&& body) {
  const bool is_usual =
      ((size == usual ? (body(std::integral_constant<Index, usual>{}), true) : false) || ...);
  if (!is_usual) body(size);
}
using UsualRowBytes = std::integer_sequence<Index, 2, 4, 8, 16, 32, 64, 128>;
using UsualWidths = std::integer_sequence<Index, 1, 4, 8, 16, 32>;

/// Copies a row. Common sizes take a few instructions.
inline void copy_row(std::byte* to, const std::byte* from, Index bytes) {
  with_constant(UsualRowBytes{}, bytes,
                [&](auto size) { std::memcpy(to, from, static_cast<std::size_t>(size)); });
}

/// Prefetch distance, in rows.
constexpr std::size_t kRowsAhead = 16;

/// Prefetches a row that is needed soon, because the processor cannot predict scattered rows.
/// Prefetches only the start of a long row; the hardware prefetcher handles the rest.
template <bool for_writing = false>
void prefetch_row(const std::byte* row, Index bytes) {
  constexpr Index kLine = 64;
  constexpr Index kMost = 8 * kLine;
  for (Index at = 0; at < std::min(bytes, kMost); at += kLine) {
    __builtin_prefetch(row + at, for_writing ? 1 : 0);
  }
}

/// Loads an element of a row at any alignment.
template <typename T>
T load(const std::byte* from, Index element) {
  T value;
  std::memcpy(&value, from + element * static_cast<Index>(sizeof(T)), sizeof(T));
  return value;
}

/// Stores an element of a row at any alignment.
template <typename T>
void store(std::byte* to, Index element, T value) {
  std::memcpy(to + element * static_cast<Index>(sizeof(T)), &value, sizeof(T));
}

/// Adds a row: sums[i] += from[i]. The two do not overlap.
template <typename T>
void add_row(const std::byte* __restrict from, Index width,
             typename ValueTraits<T>::Sum* __restrict sums) {
  for (Index i = 0; i < width; ++i) sums[i] += ValueTraits<T>::widen(load<T>(from, i));
}

}  // namespace sparsesync::cpu
