// Radix sort of 64-bit words, shared by the sorts and by partition().
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"

namespace sparsesync::cpu {

/// Returns the same memory as unsigned words.
inline std::span<std::uint64_t> words_of(std::span<Index> indices) {
  return {reinterpret_cast<std::uint64_t*>(indices.data()), indices.size()};
}

/// Sorts by bits [first_bit, last_bit) of each word. Words that agree in these bits keep their
/// order. One pass over the uppermost digit creates buckets that fit into the inner caches. Each
/// bucket is then sorted by its other digits, lowest first.
/// @param words  overwritten, unless returned
/// @param other  scratch memory of the same size
/// @return `words` or `other`, whichever holds the result
/// @throws BudgetError if `counts` may not grow
std::span<std::uint64_t> radix_sort(const Context& context, std::span<std::uint64_t> words,
                                    std::span<std::uint64_t> other, int first_bit, int last_bit,
                                    Buffer<std::uint64_t>& counts);

/// Returns the bits of a position below `size`. A packed word is key << place_bits(size) |
/// position.
inline int place_bits(std::size_t size) {
  return bit_width_below(size);
}

/// Sorts packed words by key and unpacks them.
/// @param packed    in: packed words; out: the keys, increasing
/// @param order     receives the positions; the same size as `packed`
/// @param key_bits  key_bits + place_bits(packed.size()) <= 64
/// @throws BudgetError if the workspace may not grow
void sort_packed(const Context& context, std::span<Index> packed, std::span<Index> order,
                 int key_bits, SortWorkspace& workspace);

}  // namespace sparsesync::cpu
