// Radix sorts with CUB. A separate source file compiles them once, because they take long to
// compile.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/views.h"
#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

/// Sorts words by their bits [first_bit, last_bit). Words that agree in these bits keep their
/// order. Does not synchronize the stream.
/// @param words  overwritten
/// @return the sorted words, in `scratch`; or `words` itself if there is nothing to sort
std::span<std::uint64_t> sort_words(const Context& context, Scratch& scratch,
                                    std::span<std::uint64_t> words, int first_bit, int last_bit);

/// Sorted keys with their input positions. Equal keys keep their order. Pass it to kernels by
/// value: it is a view of scratch memory.
struct SortedWords {
  const std::uint64_t* words = nullptr;  // key << place_bits | input position
  int place_bits = 0;
  // The unsorted keys if a key and its position do not fit into a word, otherwise null.
  const Index* keys = nullptr;

  /// Returns the input position of the i-th element in order.
  __device__ Index source(Index i) const {
    return static_cast<Index>(words[i] & low_mask(place_bits));
  }
  /// Returns the i-th key in order.
  __device__ Index key(Index i) const {
    return keys == nullptr ? static_cast<Index>(words[i] >> static_cast<unsigned>(place_bits))
                           : keys[source(i)];
  }
};

/// Returns the number of bits of a position below `size`.
inline int place_bits_of(Index size) {
  return bit_width_below(static_cast<std::uint64_t>(size));
}
/// Returns whether a key and its position below `size` fit into a word.
inline bool fit_into_word(int key_bits, Index size) {
  return key_bits + place_bits_of(size) <= 64;
}

/// Sorts keys and keeps their input positions. Does not synchronize the stream.
/// @param keys  below 2^key_bits; if keys do not satisfy fit_into_word(), they must stay unchanged
///              while the result is in use
SortedWords sort_by_key(const Context& context, Scratch& scratch, std::span<const Index> keys,
                        int key_bits);

}  // namespace sparsesync::cuda
