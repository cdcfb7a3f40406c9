// A plain kernel that reads its input and writes only a sum. It measures how fast a GPU reads, as a
// baseline of compact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/context.h"

namespace sparsesync::bench {

/// Adds up all 4-byte words, modulo 2^32. Does not synchronize the stream.
/// @param bytes  on the device; address and size are multiples of 16 bytes
/// @param sum    on the device; overwritten
void read_reduce(const Context& context, std::span<const std::byte> bytes, std::uint32_t* sum);

}  // namespace sparsesync::bench
