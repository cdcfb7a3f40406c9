// Sums of rows whose terms are known by sorted words, rounded once: of each row in the order of
// its terms. For the sources of the bodies alone.
#pragma once

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

/// Where among sorted words the terms of each row of the result begin. For kernels, by value: a
/// view of scratch.
struct RowTerms {
  /// A row of so many terms is summed by a block for each 32 of its columns, where others are by
  /// single threads: of one that has most of all terms a thread would have to wait for memory too
  /// often.
  static constexpr Index kMany = 64;

  Index* begin;                    // [row], and the end of the last one
  Index* rows_of_many;             // in any order
  unsigned long long* many_count;  // of them

  /// The first term of a row. Called once for each, in any order.
  /// @param many  whether it has at least kMany
  __device__ void put(Index row, Index first, bool many) const {
    begin[row] = first;
    if (many) rows_of_many[atomicAdd(many_count, 1ULL)] = row;
  }
  /// Called once, with how many rows and terms there are.
  __device__ void end(Index rows, Index terms) const { begin[rows] = terms; }
  /// Once all were put.
  __device__ bool has_many(Index row) const { return begin[row + 1] - begin[row] >= kMany; }
};

/// Memory for so many terms. Does not synchronize the stream.
inline RowTerms row_terms(const Context& context, Scratch& scratch, Index terms) {
  const RowTerms made{scratch.take<Index>(terms + 1).data(),
                      scratch.take<Index>(terms / RowTerms::kMany).data(),
                      scratch.take<unsigned long long>(1).data()};
  clear(context, made.many_count, sizeof(*made.many_count));
  return made;
}

namespace detail {

/// How a kernel reads and writes: so many elements at a time, each where elements of T may lie or
/// anywhere.
template <typename T, int elements, bool aligned>
struct Access {
  static constexpr int kElements = elements;
  struct alignas(sizeof(T) * elements) Pack {
    T of[elements];
  };

  __device__ static Pack load_pack(const std::byte* from, Index pack) {
    if constexpr (aligned) {
      return reinterpret_cast<const Pack*>(from)[pack];
    } else {
      return Pack{{load<T>(from, pack)}};
    }
  }
  __device__ static void store_pack(std::byte* to, Index pack, const Pack& values) {
    if constexpr (aligned) {
      reinterpret_cast<Pack*>(to)[pack] = values;
    } else {
      store(to, pack, values.of[0]);
    }
  }
};

struct Summed {
  RowTerms terms;
  SortedWords sorted;
  const Index* count;  // rows
  const std::byte* from;
  std::byte* to;
  Index width;
};

/// Sums some columns of a row of few terms.
template <typename T, typename Packs>
__device__ void sum_few(const Summed& of, Index row, Index packs, Index pack) {
  using Sum = typename ValueTraits<T>::Sum;
  constexpr int kAtOnce = 4;
  const auto load_term = [&](Index term) {
    return Packs::load_pack(of.from, of.sorted.place(term) * packs + pack);
  };
  const Index end = of.terms.begin[row + 1];
  Index term = of.terms.begin[row];
  if (term + 1 == end) return Packs::store_pack(of.to, row * packs + pack, load_term(term));
  Sum sums[Packs::kElements] = {};
  const auto add = [&](const typename Packs::Pack& values) {
    for (int k = 0; k < Packs::kElements; ++k) sums[k] += ValueTraits<T>::widen(values.of[k]);
  };
  for (; term + kAtOnce <= end; term += kAtOnce) {
    typename Packs::Pack values[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) values[i] = load_term(term + i);
    for (int i = 0; i < kAtOnce; ++i) add(values[i]);
  }
  for (; term < end; ++term) add(load_term(term));
  typename Packs::Pack result;
  for (int k = 0; k < Packs::kElements; ++k) result.of[k] = ValueTraits<T>::narrow(sums[k]);
  Packs::store_pack(of.to, row * packs + pack, result);
}

/// Sums 32 columns of a row of many terms: all warps bring terms near, and while they come the
/// first one adds those that are there, in their order.
/// @param staged  the block's shared memory, of 2 * kStage * 32 elements
template <typename T, bool aligned, int kStage>
__device__ void sum_many(const Summed& of, Index row, Index first_column, T* staged) {
  using Sum = typename ValueTraits<T>::Sum;
  constexpr int kWarps = kBlock / kWarp;
  constexpr int kEach = kStage / kWarps;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Index column = first_column + lane;
  const bool has_column = column < of.width;
  const Index begin = of.terms.begin[row];
  const Index count = of.terms.begin[row + 1] - begin;
  const Index stages = ceil_div<Index>(count, kStage);
  Sum sum{};
  // Two stages of memory in turn: terms of one come while those of the one before are added.
  for (Index stage = 0; stage <= stages; ++stage) {
    T* const coming = staged + stage % 2 * kStage * kWarp;
    const T* const there = staged + (stage + 1) % 2 * kStage * kWarp;
    T values[kEach] = {};
    for (int i = 0; i < kEach; ++i) {
      const Index term = stage * kStage + i * kWarps + warp;
      if (has_column && term < count) {
        values[i] = Access<T, 1, aligned>::load_pack(
                        of.from, of.sorted.place(begin + term) * of.width + column)
                        .of[0];
      }
    }
    if (warp == 0 && has_column && stage > 0) {
      const Index left = count - (stage - 1) * kStage;
      const int here = left < kStage ? static_cast<int>(left) : kStage;
      for (int i = 0; i < here; ++i) sum += ValueTraits<T>::widen(there[i * kWarp + lane]);
    }
    for (int i = 0; i < kEach; ++i) coming[(i * kWarps + warp) * kWarp + lane] = values[i];
    __syncthreads();
  }
  if (warp == 0 && has_column) {
    Access<T, 1, aligned>::store_pack(of.to, row * of.width + column,
                                      {{ValueTraits<T>::narrow(sum)}});
  }
}

template <typename T, int elements, bool aligned>
__global__ void sum_kernel(Summed of, Index packs, unsigned lane_bits) {
  // Of as many bytes for each type: as much as lets an H200's processor have all its threads.
  constexpr int kStage = 256 / static_cast<int>(sizeof(T));
  __shared__ __align__(16) std::byte staged[2 * 256 * kWarp];
  const Index chunks = ceil_div<Index>(of.width, kWarp);
  const Index tasks = static_cast<Index>(*of.terms.many_count) * chunks;
  for (Index task = blockIdx.x; task < tasks; task += gridDim.x) {
    sum_many<T, aligned, kStage>(of, of.terms.rows_of_many[task / chunks], task % chunks * kWarp,
                                 reinterpret_cast<T*>(staged));
  }
  const Index rows = *of.count;
  const Index lanes = Index{1} << lane_bits;
  const Index lane = thread_number() & (lanes - 1);
  for (Index row = thread_number() >> lane_bits; row < rows; row += thread_count() >> lane_bits) {
    if (of.terms.has_many(row)) continue;
    for (Index pack = lane; pack < packs; pack += lanes) {
      sum_few<T, Access<T, elements, aligned>>(of, row, packs, pack);
    }
  }
}

template <typename T, int elements, bool aligned>
void sum_packs(const Context& context, const Summed& of, Index most_rows) {
  const Index packs = of.width / elements;
  const auto lane_bits =
      static_cast<unsigned>(std::min(bit_width_below(static_cast<std::uint64_t>(packs)), 5));
  launch<sum_kernel<T, elements, aligned>>(context, blocks_for(context, most_rows << lane_bits),
                                           kBlock, of, packs, lane_bits);
}

}  // namespace detail

/// to.row(i) = the sum of the i-th row's terms, rounded; a row of one term stays as it is. Does not
/// synchronize the stream.
/// @param terms   of each row
/// @param sorted  says where in `from` each term stands
/// @param count   of rows, at most `size`
/// @param size    terms of all rows
template <typename T>
void sum_terms(const Context& context, const RowTerms& terms, const SortedWords& sorted,
               const Index* count, Index size, ConstMatrix from, Matrix to) {
  if (from.width == 0) return;
  const detail::Summed summed{terms, sorted, count, from.data, to.data, from.width};
  const int unit = common_unit(address_of(from.data) | address_of(to.data) |
                               static_cast<std::uint64_t>(from.row_bytes()));
  if (unit == 16) {
    detail::sum_packs<T, 16 / sizeof(T), true>(context, summed, size);
  } else if (unit >= static_cast<int>(sizeof(T))) {
    detail::sum_packs<T, 1, true>(context, summed, size);
  } else {
    detail::sum_packs<T, 1, false>(context, summed, size);
  }
}

}  // namespace sparsesync::cuda
