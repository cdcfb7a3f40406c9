// CPU implementations of the sorts: a radix sort of words with a key and its position.
#include "kernels/indices/sort.h"

#include <algorithm>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/indices/radix_sort.h"

namespace sparsesync::cpu {
namespace {

/// Sorts keys that do not fit into a word with their positions. Sorts by as many of the lower key
/// bits as fit, then stably by the next ones.
void sort_wide(const Context& context, std::span<Index> keys, std::span<Index> order, int key_bits,
               SortWorkspace& workspace) {
  const auto size = std::ssize(keys);
  std::span<std::uint64_t> words = workspace.words.reserve(size);
  std::span<std::uint64_t> other = workspace.wide.reserve(size);
  const int low_bits = place_bits(keys.size());
  const std::uint64_t place_mask = low_mask(low_bits);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i;
  for (int done = 0; done < key_bits; done += 64 - low_bits) {
    const int bits = std::min(64 - low_bits, key_bits - done);
    for (std::uint64_t& word : words) {
      const std::uint64_t place = word & place_mask;
      const auto key = static_cast<std::uint64_t>(keys[place]) >> static_cast<unsigned>(done);
      word = (key & low_mask(bits)) << static_cast<unsigned>(low_bits) | place;
    }
    const std::span<std::uint64_t> sorted =
        radix_sort(context, words, other, low_bits, low_bits + bits, workspace.counts);
    if (sorted.data() != words.data()) std::swap(words, other);
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    order[i] = static_cast<Index>(words[i] & place_mask);
    other[i] = static_cast<std::uint64_t>(keys[static_cast<std::size_t>(order[i])]);
  }
  std::copy(other.begin(), other.end(), words_of(keys).begin());
}

}  // namespace

void sort_keys(const Context& context, std::span<Index> keys, Index bound,
               SortWorkspace& workspace) {
  const std::span<std::uint64_t> words = words_of(keys);
  const std::span<std::uint64_t> sorted =
      radix_sort(context, words, workspace.words.reserve(std::ssize(keys)), 0,
                 bit_width_below(static_cast<std::uint64_t>(bound)), workspace.counts);
  if (sorted.data() != words.data()) std::copy(sorted.begin(), sorted.end(), words.begin());
}

void sort_with_order(const Context& context, std::span<Index> keys, std::span<Index> order,
                     Index bound, SortWorkspace& workspace) {
  SPARSESYNC_EXPECT(keys.size(), ==, order.size());
  const int key_bits = bit_width_below(static_cast<std::uint64_t>(bound));
  const int low_bits = place_bits(keys.size());
  if (key_bits + low_bits > 64) {
    sort_wide(context, keys, order, key_bits, workspace);
    return;
  }
  const std::span<std::uint64_t> words = words_of(keys);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = words[i] << static_cast<unsigned>(low_bits) | i;
  }
  sort_packed(context, keys, order, key_bits, workspace);
}

}  // namespace sparsesync::cpu
