// CUDA implementations of fetch_pieces() and upload_pieces(). The descriptions of the pieces, and
// the data to upload, are kernel parameters, so they need no extra copy.
#include "kernels/base/host_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {
namespace {

using Word = std::uint64_t;
constexpr std::size_t kWordBytes = sizeof(Word);

/// Pieces per launch.
constexpr int kPieces = 64;

/// Addresses of the pieces, and the offset of each in the concatenation of their words.
template <typename Pointer>
struct Pieces {
  Pointer* at[kPieces];
  unsigned begin[kPieces + 1];
  int count = 0;
};

/// Words uploaded per launch: together with the pieces they fit into 4 KiB of parameters.
constexpr unsigned kWords = 256;
struct Words {
  Word of[kWords];
};

__global__ void fetch_kernel(const __grid_constant__ Pieces<const Word> pieces, Word* to) {
  for (int piece = static_cast<int>(blockIdx.x); piece < pieces.count;
       piece += static_cast<int>(gridDim.x)) {
    const unsigned begin = pieces.begin[piece];
    for (unsigned i = begin + threadIdx.x; i < pieces.begin[piece + 1]; i += blockDim.x) {
      to[i] = pieces.at[piece][i - begin];
    }
  }
}

__global__ void place_kernel(const __grid_constant__ Pieces<Word> pieces,
                             const __grid_constant__ Words words) {
  for (int piece = static_cast<int>(blockIdx.x); piece < pieces.count;
       piece += static_cast<int>(gridDim.x)) {
    const unsigned begin = pieces.begin[piece];
    for (unsigned i = begin + threadIdx.x; i < pieces.begin[piece + 1]; i += blockDim.x) {
      pieces.at[piece][i - begin] = words.of[i];
    }
  }
}

/// Appends a piece.
/// @pre pieces.count < kPieces
template <typename Pointer, typename Byte>
void add(Pieces<Pointer>& pieces, std::span<Byte> piece) {
  SPARSESYNC_EXPECT(piece.size() % kWordBytes, ==, std::size_t{0});
  SPARSESYNC_EXPECT(reinterpret_cast<std::uintptr_t>(piece.data()) % kWordBytes, ==,
                    std::uintptr_t{0});
  if (pieces.count == 0) pieces.begin[0] = 0;
  pieces.at[pieces.count] = reinterpret_cast<Pointer*>(piece.data());
  pieces.begin[pieces.count + 1] =
      pieces.begin[pieces.count] + static_cast<unsigned>(piece.size() / kWordBytes);
  ++pieces.count;
}

}  // namespace

void fetch_pieces(const Context& context, std::span<const std::span<const std::byte>> from,
                  std::byte* to) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> piece : from) bytes += piece.size();
  Scratch scratch(context);
  const std::span<Word> all = scratch.allocate<Word>(static_cast<Index>(bytes / kWordBytes));
  std::size_t filled = 0;
  for (std::size_t first = 0; first < from.size(); first += kPieces) {
    Pieces<const Word> pieces{};  // zeroed: unused entries are part of the kernel's parameters, too
    for (const auto piece :
         from.subspan(first, std::min<std::size_t>(kPieces, from.size() - first)))
      add(pieces, piece);
    launch<fetch_kernel>(context, pieces.count, kWarp, pieces, all.data() + filled);
    filled += pieces.begin[pieces.count];
  }
  stream_of(context).download(std::as_bytes(all), to);
}

void upload_pieces(const Context& context, std::span<const std::byte> from,
                   std::span<const std::span<std::byte>> to) {
  std::size_t bytes = 0;
  for (const std::span<std::byte> piece : to) bytes += piece.size();
  SPARSESYNC_EXPECT(from.size(), ==, bytes);
  Pieces<Word> pieces{};
  Words words{};
  unsigned used = 0;
  const auto flush = [&] {
    if (used > 0) launch<place_kernel>(context, pieces.count, kWarp, pieces, words);
    pieces.count = 0;
    used = 0;
  };
  for (std::span<std::byte> piece : to) {
    while (!piece.empty()) {
      if (pieces.count == kPieces || used == kWords) flush();
      const std::span<std::byte> part =
          piece.first(std::min<std::size_t>(piece.size(), (kWords - used) * kWordBytes));
      add(pieces, part);
      std::memcpy(words.of + used, from.data(), part.size());
      used = pieces.begin[pieces.count];
      from = from.subspan(part.size());
      piece = piece.subspan(part.size());
    }
  }
  flush();
}

}  // namespace sparsesync::cuda
