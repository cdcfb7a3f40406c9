// Sorts by CUB. Compiled once, because they take long to compile.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/bits.h"
#include "kernels/base/views.h"
#include "kernels/cuda/stream.h"

namespace sparsesync::cuda {

/// Sorts words by their bits [first_bit, last_bit); words that agree in them keep their order. Does
/// not synchronize the stream.
/// @param words  lost
/// @return as many words, of `scratch`; or `words`, where there is nothing to sort
std::span<std::uint64_t> sort_words(const Context& context, Scratch& scratch,
                                    std::span<std::uint64_t> words, int first_bit, int last_bit);

/// Keys in order, and of each the place where it stood; equal keys keep their order. For kernels,
/// by value: a view of scratch.
struct SortedWords {
  const std::uint64_t* words = nullptr;  // key << place_bits | place
  int place_bits = 0;
  const Index* keys = nullptr;  // as they stood, where a key and its place do not fit into a word

  /// Returns the input position of the i-th element in order.
  __device__ Index source(Index i) const {
    return static_cast<Index>(words[i] & low_mask(place_bits));
  }
  /// The i-th in order.
  __device__ Index key(Index i) const {
    return keys == nullptr ? static_cast<Index>(words[i] >> static_cast<unsigned>(place_bits))
                           : keys[source(i)];
  }
};

/// The bits of a place among `size`.
inline int place_bits_of(Index size) {
  return bit_width_below(static_cast<std::uint64_t>(size));
}
/// Whether a key and its place among `size` fit into a word.
inline bool fit_into_word(int key_bits, Index size) {
  return key_bits + place_bits_of(size) <= 64;
}

/// Does not synchronize the stream.
/// @param keys  below 2^key_bits; where they do not fit_into_word(), they stay as they are for as
///              long as the result is in use
SortedWords sort_by_key(const Context& context, Scratch& scratch, std::span<const Index> keys,
                        int key_bits);

}  // namespace sparsesync::cuda
