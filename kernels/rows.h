// Moves and adds rows and elements: between row-sparse and dense, between an element type and its
// sums.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/context.h"
#include "kernels/views.h"

namespace sparsesync {

// Sums are f32 for f32 and bf16 (design: "Bits").

namespace cpu {
/// out.row(i) = columns [first_column, first_column + out.width) of from.row(rows[i]). Does not
/// synchronize the stream.
/// @param rows  each in [0, from.rows); out.rows of them
void gather_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                 Index first_column, Matrix out);
}  // namespace cpu
inline constexpr Operation gather_rows{cpu::gather_rows};

namespace cpu {
/// Columns [first_column, first_column + from.width) of out.row(rows[i]) = from.row(i). Does not
/// synchronize the stream.
/// @param rows  distinct, each in [0, out.rows); from.rows of them
void scatter_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                  Index first_column, Matrix out);
}  // namespace cpu
inline constexpr Operation scatter_rows{cpu::scatter_rows};

namespace cpu {
/// Copies bytes that do not overlap. Does not synchronize the stream.
void copy(const Context& context, std::span<const std::byte> from, std::byte* to);
}  // namespace cpu
inline constexpr Operation copy{cpu::copy};

namespace cpu {
/// Sets bytes to 0: every element type's +0. Does not synchronize the stream.
void fill_zero(const Context& context, std::span<std::byte> bytes);
}  // namespace cpu
inline constexpr Operation fill_zero{cpu::fill_zero};

namespace cpu {
/// shifted[i] = indices[i] + by. Does not synchronize the stream.
void shift(const Context& context, std::span<const Index> indices, Index by,
           std::span<Index> shifted);
}  // namespace cpu
inline constexpr Operation shift{cpu::shift};

namespace cpu {
/// numbers[i] = i. Does not synchronize the stream.
void number(const Context& context, std::span<Index> numbers);
}  // namespace cpu
inline constexpr Operation number{cpu::number};

namespace cpu {
/// places[order[i]] = i: where each element went that a sort took from place order[i]. Does not
/// synchronize the stream.
/// @param order  a permutation of [0, order.size())
void invert(const Context& context, std::span<const Index> order, std::span<Index> places);
}  // namespace cpu
inline constexpr Operation invert{cpu::invert};

namespace cpu {
/// sums.row(rows[i]) += from.row(i), in increasing i. Does not synchronize the stream.
/// @param rows  from.rows of them, repeats allowed
/// @param sums  rows of from.width sums
void add_rows(const Context& context, ConstMatrix from, std::span<const Index> rows, float* sums);
}  // namespace cpu
inline constexpr Operation add_rows{cpu::add_rows};

namespace cpu {
/// sums[i] += addends[i]. Does not synchronize the stream.
void add(const Context& context, std::span<const float> addends, std::span<float> sums);
}  // namespace cpu
inline constexpr Operation add{cpu::add};

namespace cpu {
/// out[i] = the element type's rounding of sums[i] · scale; a scale of 1 changes no bit. Does not
/// synchronize the stream.
/// @param out  sums.size() elements of `dtype`; may be the memory of `sums` itself for f32
void round_sums(const Context& context, std::span<const float> sums, float scale, DType dtype,
                std::byte* out);
}  // namespace cpu
inline constexpr Operation round_sums{cpu::round_sums};

}  // namespace sparsesync
