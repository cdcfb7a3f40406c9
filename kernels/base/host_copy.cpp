// CPU implementations of fetch() and upload().
#include "kernels/base/host_copy.h"

#include <cstring>

#include "kernels/base/error.h"

namespace sparsesync::cpu {

void fetch(const Context&, std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void upload(const Context&, std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void fetch_pieces(const Context&, std::span<const std::span<const std::byte>> from, std::byte* to) {
  for (const std::span<const std::byte> piece : from) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
}

void upload_pieces(const Context&, std::span<const std::byte> from,
                   std::span<const std::span<std::byte>> to) {
  for (const std::span<std::byte> piece : to) {
    SPARSESYNC_EXPECT(piece.size(), <=, from.size());
    if (!piece.empty()) std::memcpy(piece.data(), from.data(), piece.size());
    from = from.subspan(piece.size());
  }
  SPARSESYNC_EXPECT(from.size(), ==, std::size_t{0});
}

}  // namespace sparsesync::cpu
