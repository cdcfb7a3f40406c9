// Copies between the context's memory and the host's memory.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// Copies from the context's memory to the host. Synchronizes the stream.
void fetch(const Context& context, std::span<const std::byte> from, std::byte* to);

/// Copies from the host's memory to the context. `from` may be reused immediately. Does not
/// synchronize the stream.
void upload(const Context& context, std::span<const std::byte> from, std::byte* to);
}  // namespace cpu

SPARSESYNC_OPERATION(fetch);
SPARSESYNC_OPERATION(upload);

/// Copies numbers from the context's memory to the host. Synchronizes the stream.
/// @param to  the same size as `from`
inline void fetch_numbers(const Context& context, std::span<const Index> from,
                          std::span<Index> to) {
  fetch(context, std::as_bytes(from), std::as_writable_bytes(to).data());
}

/// Returns whether fetch() returns without waiting. If so, fetch values one by one as they are
/// needed; otherwise fetch all of them at once. Does not synchronize the stream.
inline bool fetches_at_once(const Context& context) {
  return context.device() == Device::cpu;
}

namespace cpu {
/// Copies pieces of the context's memory to the host, one after another. Synchronizes the stream.
/// @param from  pieces whose addresses and sizes are multiples of 8 bytes
/// @param to    at least the total size of all pieces, in bytes
void fetch_pieces(const Context& context, std::span<const std::span<const std::byte>> from,
                  std::byte* to);

/// Copies from the host to pieces of the context's memory; the reverse of fetch_pieces(). `from`
/// may be reused immediately. Does not synchronize the stream.
/// @param from  the total size of all pieces, in bytes
/// @param to    pieces aligned as for fetch_pieces(), without overlap
void upload_pieces(const Context& context, std::span<const std::byte> from,
                   std::span<const std::span<std::byte>> to);
}  // namespace cpu

SPARSESYNC_OPERATION(fetch_pieces);
SPARSESYNC_OPERATION(upload_pieces);

}  // namespace sparsesync
