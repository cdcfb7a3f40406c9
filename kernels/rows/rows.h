// Moves and adds rows and elements: between row-sparse and dense matrices, and between elements and
// their sums.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Arguments of gather_rows(), except the matrix that it reads.
struct GatherJob {
  std::span<const Index> rows;
  Index first_column = 0;
  Matrix out;
};

/// Arguments of scatter_rows(), except the matrix that it writes.
struct ScatterJob {
  ConstMatrix from;
  std::span<const Index> rows;
  Index first_column = 0;
};

namespace detail {
/// Starts a sum with an element. -0 becomes +0, as in a sum that starts from zero.
template <typename T>
SPARSESYNC_HOST_DEVICE inline typename ValueTraits<T>::Sum start_sum(T first) {
  return typename ValueTraits<T>::Sum{} + ValueTraits<T>::widen(first);
}

/// Scales a sum and rounds it to the element type.
/// @param factor  1 for integers
template <typename T>
SPARSESYNC_HOST_DEVICE inline T round_sum(typename ValueTraits<T>::Sum sum,
                                          typename ValueTraits<T>::Sum factor) {
  return ValueTraits<T>::narrow(sum * factor);
}
}  // namespace detail

// Sums are matrices of the element type's sum_dtype(), aligned for it.

namespace cpu {
/// Gathers rows: out.row(i) = columns [first_column, first_column + out.width) of
/// from.row(rows[i]). Does not synchronize the stream.
/// @param rows  out.rows row numbers in [0, from.rows)
void gather_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                 Index first_column, Matrix out);

/// Scatters rows: columns [first_column, first_column + from.width) of out.row(rows[i]) =
/// from.row(i). Does not synchronize the stream.
/// @param rows  from.rows distinct row numbers in [0, out.rows)
void scatter_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                  Index first_column, Matrix out);

/// Runs gather_rows() for each job. Does not synchronize the stream.
/// @param jobs  no output overlaps memory that another job reads or writes
void gather_rows_all(const Context& context, ConstMatrix from, std::span<const GatherJob> jobs);

/// Runs scatter_rows() for each job. Does not synchronize the stream.
/// @param jobs  no two jobs write the same element
void scatter_rows_all(const Context& context, std::span<const ScatterJob> jobs, Matrix out);

/// Copies bytes between non-overlapping memory. Does not synchronize the stream. On a GPU, either
/// side may also be pinned host memory, which must stay valid until the stream has executed the
/// copy.
void copy(const Context& context, std::span<const std::byte> from, std::byte* to);

/// Sets bytes to 0, which is +0 in every element type. Does not synchronize the stream.
void fill_zero(const Context& context, std::span<std::byte> bytes);

/// Adds an offset to indices: shifted[i] = indices[i] + by. Does not synchronize the stream.
void shift(const Context& context, std::span<const Index> indices, Index by,
           std::span<Index> shifted);

/// Numbers elements: numbers[i] = i. Does not synchronize the stream.
void number(const Context& context, std::span<Index> numbers);

/// Inverts a permutation: places[order[i]] = i. If a sort moved the element at position order[i] to
/// position i, then places[j] is the new position of element j. Does not synchronize the stream.
/// @param order  a permutation of [0, order.size())
void invert(const Context& context, std::span<const Index> order, std::span<Index> places);

/// Starts sums: sums = 0 + from, element by element. Equals fill_zero() and an addition, in one
/// pass. Does not synchronize the stream.
/// @param from  any alignment
/// @param sums  dtype sum_dtype(from.dtype); rows and width of `from`
void start_sums(const Context& context, ConstMatrix from, Matrix sums);

/// Adds rows: sums.row(rows[i]) += from.row(i), in increasing order of i. Does not synchronize the
/// stream.
/// @param from  any alignment
/// @param rows  from.rows row numbers in [0, sums.rows); repetitions allowed
/// @param sums  dtype sum_dtype(from.dtype), width from.width
void add_rows(const Context& context, ConstMatrix from, std::span<const Index> rows, Matrix sums);

/// Adds element by element: sums += addends. Does not synchronize the stream.
/// @param addends  dtype whose sum_dtype() is that of `sums`; rows and width of `sums`; any
///                 alignment
void add(const Context& context, ConstMatrix addends, Matrix sums);

/// Scales and rounds sums: out = round(sums · scale), element by element. `scale` is first rounded
/// to the sum type; a scale of 1 changes no bit. Does not synchronize the stream.
/// @param scale  1 for integers
/// @param out    rows and width of `sums`, whose dtype is sum_dtype(out.dtype); any alignment. May
///               be the memory of `sums` if both have the same dtype.
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
