// A plain kernel that reads and writes nothing but a sum: how fast a GPU reads. What compacting a
// dense tensor is held against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/context.h"

namespace sparsesync::bench {

/// Adds up all words of 4 bytes, modulo 2^32. Does not synchronize the stream.
/// @param bytes  of the device, at a multiple of 16, a multiple of 16 of them
/// @param sum    of the device; overwritten
void read_reduce(const Context& context, std::span<const std::byte> bytes, std::uint32_t* sum);

}  // namespace sparsesync::bench
