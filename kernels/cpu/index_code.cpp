// CPU bodies of the index codes: what is the same for all of them.
#include "kernels/index_code.h"

#include <bit>

#include "kernels/cpu/index_codes/bodies.h"

namespace sparsesync::cpu {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

void encode(const Context&, IndexCode code, IndexRange range, std::span<const Index> indices,
            std::span<std::byte> out) {
  sparsesync::detail::expect_room(code, range, std::ssize(indices), std::ssize(out));
  for_index_code(code, [&](auto type) { encode_as(type, range, indices, out); });
}

void decode(const Context&, IndexCode code, IndexRange range, std::span<const std::byte> bytes,
            std::span<Index> indices) {
  sparsesync::detail::expect_bytes(code, range, std::ssize(indices), std::ssize(bytes));
  for_index_code(code, [&](auto type) { decode_as(type, range, bytes, indices); });
}

}  // namespace sparsesync::cpu
