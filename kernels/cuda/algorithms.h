// What CUB does for the bodies: sorts and scans. Compiled once, because they take long to compile.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/queue.h"
#include "kernels/views.h"

namespace sparsesync::cuda {

/// Sorts words by their bits [first_bit, last_bit); words that agree in them keep their order. Does
/// not synchronize the stream.
/// @param words  lost
/// @return as many words, of `scratch`
std::span<std::uint64_t> sort_words(const Context& context, Scratch& scratch,
                                    std::span<std::uint64_t> words, int first_bit, int last_bit);

/// sums[i] = numbers[0] + ... + numbers[i - 1]. Does not synchronize the stream.
/// @param sums  as many; may be `numbers`
void exclusive_sums(const Context& context, Scratch& scratch, std::span<const Index> numbers,
                    std::span<Index> sums);

/// Keys in order, and beside each the place where it stood; equal keys keep their order. Views of
/// scratch.
struct SortedPlaces {
  std::span<const Index> keys;
  std::span<const Index> places;
};

/// Does not synchronize the stream.
/// @param keys  in [0, bound)
SortedPlaces sort_places(const Context& context, Scratch& scratch, std::span<const Index> keys,
                         Index bound);

}  // namespace sparsesync::cuda
