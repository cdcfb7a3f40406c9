// Sorts with CUB, and allocates the words of tiles.
#include "kernels/cuda/algorithms.h"

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {
namespace {

/// Calls a CUB function twice: once for the size of its scratch memory, and once with that memory.
/// @param launches  kernel launches of the call, according to the sources of CCCL 3
/// @param fills     fills (memset) of the call, according to the same sources
template <typename Call>
void with_scratch(const Context& context, Scratch& scratch, const char* what, int launches,
                  int fills, Call&& call) {
  std::size_t bytes = 0;
  check(call(nullptr, bytes), what);
  void* const room = scratch.allocate<std::byte>(static_cast<Index>(bytes)).data();
  const CudaStream::Timed timed(stream_of(context));
  // CUB reports the thread's last error, even if other code caused it.
  cudaGetLastError();
  check(call(room, bytes), what);
  stream_of(context).count_launch(launches);
  stream_of(context).count_copy(fills);
}

}  // namespace

std::span<std::uint64_t> sort_words(const Context& context, Scratch& scratch,
                                    std::span<std::uint64_t> words, int first_bit, int last_bit) {
  if (words.empty() || first_bit == last_bit) return words;
  const std::span<std::uint64_t> sorted = scratch.allocate<std::uint64_t>(std::ssize(words));
  // Counts a histogram, its prefix sums, and a pass for every eight bits; each pass has its own
  // fill. (A few thousand words take a single launch.)
  const int passes = ceil_div(last_bit - first_bit, 8);
  const auto sort = [&](void* room, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortKeys(room, bytes, words.data(), sorted.data(),
                                          std::ssize(words), first_bit, last_bit,
                                          stream_of(context).handle());
  };
  with_scratch(context, scratch, "sorting", 2 + passes, 2 + passes, sort);
  return sorted;
}

namespace {

/// Sets words[i] to bits [done, done + bits) of a key, above the input position of that key.
void pack(const Context& context, const Index* keys, std::uint64_t* words, Index size, int done,
          int bits) {
  const int low_bits = place_bits_of(size);
  const bool first = done == 0;
  for_each(context, size, [=] __device__(Index i) {
    const std::uint64_t place =
        first ? static_cast<std::uint64_t>(i) : words[i] & low_mask(low_bits);
    const std::uint64_t key =
        static_cast<std::uint64_t>(keys[place]) >> static_cast<unsigned>(done) & low_mask(bits);
    words[i] = key << static_cast<unsigned>(low_bits) | place;
  });
}

}  // namespace

SortedWords sort_by_key(const Context& context, Scratch& scratch, std::span<const Index> keys,
                        int key_bits) {
  const auto size = std::ssize(keys);
  const int low_bits = place_bits_of(size);
  std::span<std::uint64_t> words = scratch.allocate<std::uint64_t>(size);
  // If a key and its position do not fit into one word, sort by as many of the lower bits as fit.
  // Then sort stably by the next bits.
  const int room = std::min(key_bits, 64 - low_bits);
  int done = 0;
  do {
    const int bits = std::min(room, key_bits - done);
    pack(context, keys.data(), words.data(), size, done, bits);
    words = sort_words(context, scratch, words, low_bits, low_bits + bits);
    done += bits;
  } while (done < key_bits);
  return {words.data(), low_bits, fit_into_word(key_bits, size) ? nullptr : keys.data()};
}

Tiles fresh_tiles(const Context& context, Scratch& scratch, Index tiles) {
  const std::span<std::uint64_t> words = scratch.allocate<std::uint64_t>(Tiles::words(tiles));
  clear(context, words.data(), words.size_bytes());
  return Tiles(words);
}

}  // namespace sparsesync::cuda
