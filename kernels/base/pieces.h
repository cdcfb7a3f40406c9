// Pieces: a few bytes in each of many places, such as the numbers at the heads of a phase's
// messages, to the host or from it at once.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/context.h"

namespace sparsesync {

/// Whether fetch() waits for nothing: then what comes is best looked at as it comes, and where it
/// does not, all at once. Does not synchronize the stream.
inline bool fetches_at_once(const Context& context) {
  return context.device() == Device::cpu;
}

namespace cpu {
/// Copies pieces of the context's memory to the host's, one behind the other. Synchronizes the
/// stream.
/// @param from  at multiples of 8 bytes, of multiples of 8 bytes
/// @param to    as many bytes as all pieces together
void fetch_pieces(const Context& context, std::span<const std::span<const std::byte>> from,
                  std::byte* to);

/// The way back. `from` may be used again at once. Does not synchronize the stream.
/// @param from  as many bytes as all pieces together
/// @param to    as fetch_pieces() takes them; none overlaps another one
void place_pieces(const Context& context, std::span<const std::byte> from,
                  std::span<const std::span<std::byte>> to);
}  // namespace cpu

SPARSESYNC_OPERATION(fetch_pieces);
SPARSESYNC_OPERATION(place_pieces);

}  // namespace sparsesync
