// Sums the rows that a list names, each in list order. For kernel sources only.
#pragma once

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {

/// Positions in sorted words where the terms of each output row begin. Pass it to kernels by value:
/// it is a view of scratch memory.
struct RowTerms {
  /// Number of terms from which a row counts as long. A block sums 32 columns of a long row; single
  /// threads sum the others. A single thread that summed a row with most of all terms would wait
  /// for memory too often.
  static constexpr Index kMany = 64;

  Index* begin;                    // per row, plus the end of the last row
  Index* rows_of_many;             // long rows, in any order
  unsigned long long* many_count;  // number of long rows

  /// Records the first term of a row. Call it once per row, in any order.
  /// @param many  whether the row has at least kMany terms
  __device__ void put(Index row, Index first, bool many) const {
    begin[row] = first;
    if (many) rows_of_many[atomicAdd(many_count, 1ULL)] = row;
  }
  /// Records the total number of rows and terms. Call it once.
  __device__ void end(Index rows, Index terms) const { begin[rows] = terms; }
  /// Returns whether a row is long. Valid after all rows were recorded.
  __device__ bool has_many(Index row) const { return begin[row + 1] - begin[row] >= kMany; }
};

/// Allocates memory for `terms` terms. Does not synchronize the stream.
inline RowTerms row_terms(const Context& context, Scratch& scratch, Index terms) {
  const RowTerms made{scratch.allocate<Index>(terms + 1).data(),
                      scratch.allocate<Index>(terms / RowTerms::kMany).data(),
                      scratch.allocate<unsigned long long>(1).data()};
  clear(context, made.many_count, sizeof(*made.many_count));
  return made;
}

/// The distinct rows of a list, in increasing order, and the terms of each.
struct DistinctRows {
  SortedWords sorted;  // term i is the row at list position source(i)
  RowTerms terms;
  const Index* indices;
  const Index* count;  // number of distinct rows
  Index size;          // length of the list
};

namespace detail {

/// Items per thread in a tile of sorted indices.
inline constexpr int kTermItems = 8;

/// Selection that keeps the first of each run of equal sorted indices.
struct FirstOfRow {
  Index size;
  SortedWords sorted;
  Index first_row;
  Index* indices;  // receives the distinct rows
  Index* count;    // receives their number
  RowTerms terms;

  __device__ Index part(Index tile) const { return tile * kSelectTile<kTermItems>; }
  __device__ bool keeps(Index begin, Index item) const {
    const Index i = begin + item;
    return i < size && (i == 0 || sorted.key(i) != sorted.key(i - 1));
  }
  __device__ void put(Index begin, Index item, Index rank) const {
    const Index i = begin + item;
    const Index key = sorted.key(i);
    indices[rank] = key + first_row;
    const Index far = i + RowTerms::kMany - 1;
    terms.put(rank, i, far < size && sorted.key(far) == key);
  }
  __device__ void end(Index tile, Index kept) const {
    if (part(tile + 1) < size) return;
    terms.end(kept, size);
    *count = kept;
  }
};

}  // namespace detail

/// Finds the distinct rows of a list and the terms of their sums. Does not synchronize the stream.
/// @param list       non-empty; each row is below `bound`
/// @param first_row  added to each row that is written
/// @param indices    the same length as `list`
/// @param count      receives the number of distinct rows
inline DistinctRows find_distinct(const Context& context, Scratch& scratch,
                                  std::span<const Index> list, Index bound, Index first_row,
                                  std::span<Index> indices, Index* count) {
  const auto size = std::ssize(list);
  const SortedWords sorted =
      sort_by_key(context, scratch, list, bit_width_below(static_cast<std::uint64_t>(bound)));
  const RowTerms terms = row_terms(context, scratch, size);
  const Index tiles = ceil_div(size, kSelectTile<detail::kTermItems>);
  select<detail::kTermItems>(
      context, tiles, fresh_tiles(context, scratch, tiles),
      detail::FirstOfRow{size, sorted, first_row, indices.data(), count, terms});
  return {sorted, terms, indices.data(), count, size};
}

namespace detail {

/// Loads and stores `elements` elements at a time, either aligned for T or at any address.
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
  DistinctRows rows;
  const std::byte* from;
  std::byte* to;
  Index width;

  __device__ Index begin(Index row) const { return rows.terms.begin[row]; }
  __device__ Index end(Index row) const { return rows.terms.begin[row + 1]; }
  __device__ Index source(Index term) const { return rows.sorted.source(term); }
};

/// Writes the rounded sum of the i-th distinct row to output row i. A row with a single term is
/// copied.
template <typename T, typename Packs>
struct WriteRounded {
  using Sum = typename ValueTraits<T>::Sum;
  static constexpr bool kCopiesSingleTerms = true;

  /// The sums are zero already.
  __device__ static void begin(const Summed&, Index, Index, Sum*) {}
  __device__ static void end(const Summed& of, Index row, Index pack, const Sum* sums) {
    typename Packs::Pack result;
    for (int k = 0; k < Packs::kElements; ++k) result.of[k] = ValueTraits<T>::narrow(sums[k]);
    Packs::store_pack(of.to, row * (of.width / Packs::kElements) + pack, result);
  }
};

/// Adds the terms of the i-th distinct row to row indices[i] of the sums.
template <typename T, typename Packs>
struct AddToRows {
  using Sum = typename ValueTraits<T>::Sum;
  static constexpr bool kCopiesSingleTerms = false;

  __device__ static Sum* sums_at(const Summed& of, Index row, Index pack) {
    return reinterpret_cast<Sum*>(of.to) + of.rows.indices[row] * of.width +
           pack * Packs::kElements;
  }
  __device__ static void begin(const Summed& of, Index row, Index pack, Sum* sums) {
    const Sum* const from = sums_at(of, row, pack);
    for (int k = 0; k < Packs::kElements; ++k) sums[k] = from[k];
  }
  __device__ static void end(const Summed& of, Index row, Index pack, const Sum* sums) {
    Sum* const to = sums_at(of, row, pack);
    for (int k = 0; k < Packs::kElements; ++k) to[k] = sums[k];
  }
};

/// Sums some columns of a row with few terms.
template <typename T, typename Packs, typename Result>
__device__ void sum_few(const Summed& of, Index row, Index packs, Index pack) {
  using Sum = typename ValueTraits<T>::Sum;
  constexpr int kAtOnce = 4;
  const auto load_term = [&](Index term) {
    return Packs::load_pack(of.from, of.source(term) * packs + pack);
  };
  const Index end = of.end(row);
  Index term = of.begin(row);
  if constexpr (Result::kCopiesSingleTerms) {
    if (term + 1 == end) return Packs::store_pack(of.to, row * packs + pack, load_term(term));
  }
  Sum sums[Packs::kElements] = {};
  Result::begin(of, row, pack, sums);
  const auto add = [&](const typename Packs::Pack& values) {
    for (int k = 0; k < Packs::kElements; ++k) sums[k] += ValueTraits<T>::widen(values.of[k]);
  };
  for (; term + kAtOnce <= end; term += kAtOnce) {
    typename Packs::Pack values[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) values[i] = load_term(term + i);
    for (int i = 0; i < kAtOnce; ++i) add(values[i]);
  }
  for (; term < end; ++term) add(load_term(term));
  Result::end(of, row, pack, sums);
}

/// Sums 32 columns of a row with many terms. All warps load terms into shared memory, while the
/// first warp adds the terms of the previous stage, in order.
/// @param staged  shared memory for 2 * kStage * 32 elements
template <typename T, bool aligned, typename Result, int kStage>
__device__ void sum_many(const Summed& of, Index row, Index first_column, T* staged) {
  using Sum = typename ValueTraits<T>::Sum;
  constexpr int kWarps = kBlock / kWarp;
  constexpr int kEach = kStage / kWarps;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Index column = first_column + lane;
  const bool has_column = column < of.width;
  const Index begin = of.begin(row);
  const Index count = of.end(row) - begin;
  const Index stages = ceil_div<Index>(count, kStage);
  Sum sum{};
  if (warp == 0 && has_column) Result::begin(of, row, column, &sum);
  // Double buffering: the terms of one stage are loaded while those of the previous stage are
  // added.
  for (Index stage = 0; stage <= stages; ++stage) {
    T* const coming = staged + stage % 2 * kStage * kWarp;
    const T* const there = staged + (stage + 1) % 2 * kStage * kWarp;
    T values[kEach] = {};
    for (int i = 0; i < kEach; ++i) {
      const Index term = stage * kStage + i * kWarps + warp;
      if (has_column && term < count) {
        values[i] =
            Access<T, 1, aligned>::load_pack(of.from, of.source(begin + term) * of.width + column)
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
  if (warp == 0 && has_column) Result::end(of, row, column, &sum);
}

template <typename T, int elements, bool aligned, template <typename, typename> typename Result>
__global__ void sum_kernel(Summed of, Index packs, unsigned lane_bits) {
  // The same number of bytes for each type: small enough for full occupancy on an H200.
  constexpr int kStage = 256 / static_cast<int>(sizeof(T));
  using Packs = Access<T, elements, aligned>;
  using Single = Access<T, 1, aligned>;
  __shared__ __align__(16) std::byte staged[2 * 256 * kWarp];
  const RowTerms& terms = of.rows.terms;
  const Index chunks = ceil_div<Index>(of.width, kWarp);
  const Index tasks = static_cast<Index>(*terms.many_count) * chunks;
  for (Index task = blockIdx.x; task < tasks; task += gridDim.x) {
    sum_many<T, aligned, Result<T, Single>, kStage>(
        of, terms.rows_of_many[task / chunks], task % chunks * kWarp, reinterpret_cast<T*>(staged));
  }
  const Index rows = *of.rows.count;
  const Index lanes = Index{1} << lane_bits;
  const Index lane = thread_number() & (lanes - 1);
  for (Index row = thread_number() >> lane_bits; row < rows; row += thread_count() >> lane_bits) {
    if (terms.has_many(row)) continue;
    for (Index pack = lane; pack < packs; pack += lanes) {
      sum_few<T, Packs, Result<T, Packs>>(of, row, packs, pack);
    }
  }
}

template <typename T, int elements, bool aligned, template <typename, typename> typename Result>
void sum_packs(const Context& context, const Summed& of) {
  const Index packs = of.width / elements;
  const auto lane_bits =
      static_cast<unsigned>(std::min(bit_width_below(static_cast<std::uint64_t>(packs)), 5));
  launch<sum_kernel<T, elements, aligned, Result>>(
      context, blocks_for(context, of.rows.size << lane_bits), kBlock, of, packs, lane_bits);
}

}  // namespace detail

/// Writes sums: to.row(i) is the rounded sum of the terms of row i. A row with a single term is
/// copied. Does not synchronize the stream.
/// @param from  values of the list
template <typename T>
void write_sums(const Context& context, const DistinctRows& rows, ConstMatrix from, Matrix to) {
  using detail::WriteRounded;
  if (from.width == 0) return;
  const detail::Summed summed{rows, from.data, to.data, from.width};
  const int unit = common_unit(address_of(from.data) | address_of(to.data) |
                               static_cast<std::uint64_t>(from.row_bytes()));
  if (unit == 16) {
    detail::sum_packs<T, 16 / sizeof(T), true, WriteRounded>(context, summed);
  } else if (unit >= static_cast<int>(sizeof(T))) {
    detail::sum_packs<T, 1, true, WriteRounded>(context, summed);
  } else {
    detail::sum_packs<T, 1, false, WriteRounded>(context, summed);
  }
}

/// Adds to sums: sums.row(r) += the terms of row r, one after another. Does not synchronize the
/// stream.
/// @param from  values of the list
template <typename T>
void add_to_sums(const Context& context, const DistinctRows& rows, ConstMatrix from, Matrix sums) {
  using detail::AddToRows;
  if (from.width == 0) return;
  const detail::Summed summed{rows, from.data, sums.data, from.width};
  if (address_of(from.data) % sizeof(T) == 0) {
    detail::sum_packs<T, 1, true, AddToRows>(context, summed);
  } else {
    detail::sum_packs<T, 1, false, AddToRows>(context, summed);
  }
}

}  // namespace sparsesync::cuda
