// Copies between the context's memory and the host's.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// Copies from the context's memory to the host's. Synchronizes the stream.
void fetch(const Context& context, std::span<const std::byte> from, std::byte* to);

/// Copies from the host's memory to the context's. `from` may be used again at once. Does not
/// synchronize the stream.
void upload(const Context& context, std::span<const std::byte> from, std::byte* to);
}  // namespace cpu

SPARSESYNC_OPERATION(fetch);
SPARSESYNC_OPERATION(upload);

/// Copies numbers from the context's memory to the host's. Synchronizes the stream.
/// @param to  as many as `from`
inline void fetch_numbers(const Context& context, std::span<const Index> from,
                          std::span<Index> to) {
  fetch(context, std::as_bytes(from), std::as_writable_bytes(to).data());
}

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
void upload_pieces(const Context& context, std::span<const std::byte> from,
                   std::span<const std::span<std::byte>> to);
}  // namespace cpu

SPARSESYNC_OPERATION(fetch_pieces);
SPARSESYNC_OPERATION(upload_pieces);

}  // namespace sparsesync
