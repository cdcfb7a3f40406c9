// Sorts by CUB, and the memory of tiles.
#include "kernels/cuda/algorithms.h"

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile_scan.h"

namespace sparsesync::cuda {
namespace {

/// Calls a CUB function twice: for the bytes of scratch that it wants, and with them.
/// @param launches, fills  that it makes, as its sources have them (CCCL 3)
template <typename Call>
void with_scratch(const Context& context, Scratch& scratch, const char* what, int launches,
                  int fills, Call&& call) {
  std::size_t bytes = 0;
  check(call(nullptr, bytes), what);
  void* const room = scratch.allocate<std::byte>(static_cast<Index>(bytes)).data();
  const CudaStream::Timed timed(stream_of(context));
  cudaGetLastError();  // CUB reports the last error of the thread, whoever left it
  check(call(room, bytes), what);
  stream_of(context).count_launch(launches);
  stream_of(context).count_copy(fills);
}

}  // namespace

std::span<std::uint64_t> sort_words(const Context& context, Scratch& scratch,
                                    std::span<std::uint64_t> words, int first_bit, int last_bit) {
  if (words.empty() || first_bit == last_bit) return words;
  const std::span<std::uint64_t> sorted = scratch.allocate<std::uint64_t>(std::ssize(words));
  // A histogram, its sums, and a pass for each eight bits; each pass has a fill of its own. (Of a
  // few thousand words it is one launch.)
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

/// words[i] = bits [done, done + bits) of the key of a place, above the place.
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
  // Where a key and its place do not fit into one word: by as many of the lower bits as there is
  // room for, then a stable sort by the next.
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
