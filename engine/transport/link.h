// How a link of the local network cuts messages, in real time and on the virtual clock.
#pragma once

#include <cstdint>

#include "sparsesync/transports/local.h"  // IWYU pragma: export

namespace sparsesync {

/// What comes in over a link that has a rate comes in chunks of so many bytes, in the order of
/// their arrival, whoever sent them.
inline constexpr std::int64_t kLinkChunkBytes = 16 * 1024;

}  // namespace sparsesync
