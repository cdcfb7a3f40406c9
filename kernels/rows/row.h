// Operations on one row that implementations share, and the division of work on rows. Values in
// messages have no alignment, so elements are read and written by memcpy.
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

/// Rows that a thread is worth waking for, of this many bytes each.
inline Index row_grain(Index row_bytes) {
  constexpr Index kBytes = Index{1} << 16;
  return std::max<Index>(kBytes / std::max<Index>(row_bytes, 1), 1);
}

constexpr int kMostParts = 64;
/// A number for each part of some work, such as how many rows it finds.
using PartCounts = std::array<Index, kMostParts>;

/// Into how many parts, which PartCounts holds, work on rows of this many bytes each is cut.
inline int row_parts(const Context& context, Index rows, Index row_bytes) {
  return std::min(part_count(context, rows, row_grain(row_bytes)), kMostParts);
}

/// Calls body(size): as a constant where it is a usual one, so that a copy or a sum of so much is a
/// few instructions and no loop.
template <Index... usual, typename Body>
void with_constant(std::integer_sequence<Index, usual...>, Index size, Body&& body) {
  const bool is_usual =
      ((size == usual ? (body(std::integral_constant<Index, usual>{}), true) : false) || ...);
  if (!is_usual) body(size);
}
using UsualRowBytes = std::integer_sequence<Index, 2, 4, 8, 16, 32, 64, 128>;
using UsualWidths = std::integer_sequence<Index, 1, 4, 8, 16, 32>;

/// Copies a row: in a few instructions where it has a usual size.
inline void copy_row(std::byte* to, const std::byte* from, Index bytes) {
  with_constant(UsualRowBytes{}, bytes,
                [&](auto size) { std::memcpy(to, from, static_cast<std::size_t>(size)); });
}

/// How many rows ahead prefetch_row() is called.
constexpr std::size_t kRowsAhead = 16;

/// Asks for a row that is needed soon: where rows lie anywhere the processor does not foresee it.
/// What is far behind its begin the processor sees for itself.
template <bool for_writing = false>
void prefetch_row(const std::byte* row, Index bytes) {
  constexpr Index kLine = 64;
  constexpr Index kMost = 8 * kLine;
  for (Index at = 0; at < std::min(bytes, kMost); at += kLine) {
    __builtin_prefetch(row + at, for_writing ? 1 : 0);
  }
}

/// An element of a row, wherever it lies.
template <typename T>
T load(const std::byte* from, Index element) {
  T value;
  std::memcpy(&value, from + element * static_cast<Index>(sizeof(T)), sizeof(T));
  return value;
}

/// Writes an element of a row, wherever it lies.
template <typename T>
void store(std::byte* to, Index element, T value) {
  std::memcpy(to + element * static_cast<Index>(sizeof(T)), &value, sizeof(T));
}

/// sums[i] += the element i of `from`. They do not overlap.
template <typename T>
void add_row(const std::byte* __restrict from, Index width,
             typename ValueTraits<T>::Sum* __restrict sums) {
  for (Index i = 0; i < width; ++i) sums[i] += ValueTraits<T>::widen(load<T>(from, i));
}

}  // namespace sparsesync::cpu
