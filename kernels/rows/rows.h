// Moves and adds rows and elements: between row-sparse and dense, between an element type and its
// sums.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// What gather_rows() is given beside the matrix that it reads.
struct GatherJob {
  std::span<const Index> rows;
  Index first_column = 0;
  Matrix out;
};

/// What scatter_rows() is given beside the matrix that it writes.
struct ScatterJob {
  ConstMatrix from;
  std::span<const Index> rows;
  Index first_column = 0;
};

namespace detail {
/// Begins a sum with an element: -0 becomes +0, as in a sum that begins with zero.
template <typename T>
SPARSESYNC_HOST_DEVICE inline typename ValueTraits<T>::Sum start_sum(T first) {
  return typename ValueTraits<T>::Sum{} + ValueTraits<T>::widen(first);
}

/// Scales a sum and rounds it to the type of the elements.
/// @param factor  1 for integers
template <typename T>
SPARSESYNC_HOST_DEVICE inline T round_sum(typename ValueTraits<T>::Sum sum,
                                          typename ValueTraits<T>::Sum factor) {
  return ValueTraits<T>::narrow(sum * factor);
}
}  // namespace detail

// Sums are matrices of the element type's sum_dtype(), aligned for it (design: "Bits").

namespace cpu {
/// out.row(i) = columns [first_column, first_column + out.width) of from.row(rows[i]). Does not
/// synchronize the stream.
/// @param rows  each in [0, from.rows); out.rows of them
void gather_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                 Index first_column, Matrix out);

/// Columns [first_column, first_column + from.width) of out.row(rows[i]) = from.row(i). Does not
/// synchronize the stream.
/// @param rows  distinct, each in [0, out.rows); from.rows of them
void scatter_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                  Index first_column, Matrix out);

/// gather_rows() of each job. Does not synchronize the stream.
/// @param jobs  no output overlaps what another one reads or writes
void gather_rows_all(const Context& context, ConstMatrix from, std::span<const GatherJob> jobs);

/// scatter_rows() of each job. Does not synchronize the stream.
/// @param jobs  no two write the same element
void scatter_rows_all(const Context& context, std::span<const ScatterJob> jobs, Matrix out);

/// Copies bytes that do not overlap. Does not synchronize the stream. On a GPU either side may be
/// pinned memory of the host, too, which stays as it is until the stream has come there.
void copy(const Context& context, std::span<const std::byte> from, std::byte* to);

/// Sets bytes to 0: every element type's +0. Does not synchronize the stream.
void fill_zero(const Context& context, std::span<std::byte> bytes);

/// shifted[i] = indices[i] + by. Does not synchronize the stream.
void shift(const Context& context, std::span<const Index> indices, Index by,
           std::span<Index> shifted);

/// numbers[i] = i. Does not synchronize the stream.
void number(const Context& context, std::span<Index> numbers);

/// places[order[i]] = i: where each element went that a sort took from place order[i]. Does not
/// synchronize the stream.
/// @param order  a permutation of [0, order.size())
void invert(const Context& context, std::span<const Index> order, std::span<Index> places);

/// sums = 0 + from, element by element: as fill_zero() and then adding, in one pass. Does not
/// synchronize the stream.
/// @param from  of any alignment
/// @param sums  of sum_dtype(from.dtype); rows and width as `from`
void start_sums(const Context& context, ConstMatrix from, Matrix sums);

/// sums.row(rows[i]) += from.row(i), in increasing i. Does not synchronize the stream.
/// @param from  of any alignment
/// @param rows  from.rows of them, each in [0, sums.rows), repeats allowed
/// @param sums  of sum_dtype(from.dtype) and from.width
void add_rows(const Context& context, ConstMatrix from, std::span<const Index> rows, Matrix sums);

/// sums += addends, element by element. Does not synchronize the stream.
/// @param addends  of the dtype of `sums`, or of one whose sums are of it; rows and width as
/// `sums`;
///                 of any alignment
void add(const Context& context, ConstMatrix addends, Matrix sums);

/// out = the element type's rounding of sums · scale, element by element; `scale` is rounded to the
/// sum type first, and a scale of 1 changes no bit. Does not synchronize the stream.
/// @param scale  1 where elements are integers
/// @param out    rows and width as `sums`, which is of sum_dtype(out.dtype); of any alignment; may
///               be the memory of `sums` itself where out.dtype is its own sum
void round_sums(const Context& context, ConstMatrix sums, double scale, Matrix out);
}  // namespace cpu

SPARSESYNC_OPERATION(gather_rows);
SPARSESYNC_OPERATION(scatter_rows);
SPARSESYNC_OPERATION(gather_rows_all);
SPARSESYNC_OPERATION(scatter_rows_all);
SPARSESYNC_OPERATION(copy);
SPARSESYNC_OPERATION(fill_zero);
SPARSESYNC_OPERATION(shift);
SPARSESYNC_OPERATION(number);
SPARSESYNC_OPERATION(invert);
SPARSESYNC_OPERATION(start_sums);
SPARSESYNC_OPERATION(add_rows);
SPARSESYNC_OPERATION(add);
SPARSESYNC_OPERATION(round_sums);

}  // namespace sparsesync
