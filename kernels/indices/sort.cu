// CUDA implementations of the sorts.
#include "kernels/indices/sort.h"

#include "kernels/base/error.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/launch.h"
#include "kernels/rows/rows.h"

namespace sparsesync::cuda {
namespace {

std::span<std::uint64_t> words_of(std::span<Index> keys) {
  return {reinterpret_cast<std::uint64_t*>(keys.data()), keys.size()};
}

}  // namespace

void sort_keys(const Context& context, std::span<Index> keys, Index bound, SortWorkspace&) {
  Scratch scratch(context);
  const std::span<std::uint64_t> words = words_of(keys);
  const std::span<const std::uint64_t> sorted =
      sort_words(context, scratch, words, 0, bit_width_below(static_cast<std::uint64_t>(bound)));
  if (sorted.data() == words.data()) return;
  copy(context, std::as_bytes(sorted), std::as_writable_bytes(words).data());
}

void sort_with_order(const Context& context, std::span<Index> keys, std::span<Index> order,
                     Index bound, SortWorkspace&) {
  SPARSESYNC_EXPECT(keys.size(), ==, order.size());
  const auto size = std::ssize(keys);
  const int key_bits = bit_width_below(static_cast<std::uint64_t>(bound));
  Scratch scratch(context);
  std::span<const Index> from = keys;
  if (!fit_into_word(key_bits, size)) {
    // Copy the keys, because they are read while the output overwrites them.
    const std::span<Index> kept = scratch.allocate<Index>(size);
    copy(context, std::as_bytes(from), std::as_writable_bytes(kept).data());
    from = kept;
  }
  const SortedWords sorted = sort_by_key(context, scratch, from, key_bits);
  Index* const to = keys.data();
  Index* const places = order.data();
  for_each(context, size, [=] __device__(Index i) {
    to[i] = sorted.key(i);
    places[i] = sorted.source(i);
  });
}

}  // namespace sparsesync::cuda
