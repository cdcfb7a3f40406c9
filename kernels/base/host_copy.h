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
void place(const Context& context, std::span<const std::byte> from, std::byte* to);
}  // namespace cpu

SPARSESYNC_OPERATION(fetch);
SPARSESYNC_OPERATION(place);

/// Copies numbers from the context's memory to the host's. Synchronizes the stream.
/// @param to  as many as `from`
inline void fetch_numbers(const Context& context, std::span<const Index> from,
                          std::span<Index> to) {
  fetch(context, std::as_bytes(from), std::as_writable_bytes(to).data());
}

}  // namespace sparsesync
