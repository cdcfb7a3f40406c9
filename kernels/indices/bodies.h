// The CPU bodies of the index codes, each in a file of its own.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/base/views.h"
#include "kernels/indices/index_code.h"

namespace sparsesync::cpu {

// What encode() and decode() do for each code, after checking the sizes.
void encode_as(Coo, IndexRange range, std::span<const Index> indices, std::span<std::byte> out);
void encode_as(EliasFano, IndexRange range, std::span<const Index> indices,
               std::span<std::byte> out);
void encode_as(Bitmap, IndexRange range, std::span<const Index> indices, std::span<std::byte> out);
void encode_as(All, IndexRange range, std::span<const Index> indices, std::span<std::byte> out);

void decode_as(Coo, IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices);
void decode_as(EliasFano, IndexRange range, std::span<const std::byte> bytes,
               std::span<Index> indices);
void decode_as(Bitmap, IndexRange range, std::span<const std::byte> bytes,
               std::span<Index> indices);
void decode_as(All, IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices);

}  // namespace sparsesync::cpu
