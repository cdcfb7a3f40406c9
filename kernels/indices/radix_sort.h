// Radix sort of 64-bit words: what the sorts and partition share.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"

namespace sparsesync::cpu {

/// The same memory as unsigned words.
inline std::span<std::uint64_t> words_of(std::span<Index> indices) {
  return {reinterpret_cast<std::uint64_t*>(indices.data()), indices.size()};
}

/// Sorts by bits [first_bit, last_bit) of each word; words that agree in them keep their order. One
/// pass by the uppermost digit makes buckets that fit into the nearer caches; there each is sorted
/// by its other digits, the lowest first.
/// @param words  lost, unless it is what is returned
/// @param other  as many
/// @return `words` or `other`, whichever holds the result
/// @throws BudgetError if `counts` may not grow
std::span<std::uint64_t> radix_sort(const Context& context, std::span<std::uint64_t> words,
                                    std::span<std::uint64_t> other, int first_bit, int last_bit,
                                    Buffer<std::uint64_t>& counts);

/// The bits of a place among `size`: a packed word is key << place_bits(size) | place.
inline int place_bits(std::size_t size) {
  return bit_width_below(size);
}

/// Sorts by the keys and takes key and place apart again.
/// @param packed    in: the packed words; out: the keys, increasing
/// @param order     receives the places; as many
/// @param key_bits  key_bits + place_bits(packed.size()) <= 64
/// @throws BudgetError if the workspace may not grow
void sort_packed(const Context& context, std::span<Index> packed, std::span<Index> order,
                 int key_bits, SortWorkspace& workspace);

}  // namespace sparsesync::cpu
