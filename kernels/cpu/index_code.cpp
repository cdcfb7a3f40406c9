// CPU bodies of the index codes: what is the same for all of them.
#include "kernels/index_code.h"

#include <fmt/format.h>

#include <bit>

#include "kernels/cpu/index_codes/bodies.h"

namespace sparsesync::cpu {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

void encode(const Context&, IndexCode code, IndexRange range, std::span<const Index> indices,
            std::span<std::byte> out) {
  SPARSESYNC_EXPECT(std::ssize(out), ==, encoded_bytes(code, range.size(), std::ssize(indices)));
  for_index_code(code, [&](auto type) { encode_as(type, range, indices, out); });
}

void decode(const Context&, IndexCode code, IndexRange range, std::span<const std::byte> bytes,
            std::span<Index> indices) {
  const auto count = std::ssize(indices);
  if (count > range.size() || std::ssize(bytes) != encoded_bytes(code, range.size(), count)) {
    throw CorruptDataError(fmt::format("{} code: {} bytes for {} indices in a range of {}",
                                       name_of(code), bytes.size(), count, range.size()));
  }
  for_index_code(code, [&](auto type) { decode_as(type, range, bytes, indices); });
}

}  // namespace sparsesync::cpu
