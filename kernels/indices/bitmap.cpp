// CPU implementation of the bitmap index code.
#include "kernels/indices/index_code_cpu.h"

#include <algorithm>

namespace sparsesync::cpu {

void encode_as(Bitmap, IndexRange range, std::span<const Index> indices, std::span<std::byte> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  for (const Index index : indices) set_bit(out, static_cast<std::uint64_t>(index - range.begin));
}

void decode_as(Bitmap, IndexRange range, std::span<const std::byte> bytes,
               std::span<Index> indices) {
  Index* to = indices.data();
  for_each_bit(Bitmap::name, bytes, indices.size(),
               [&](std::size_t bit) { *to++ = range.begin + static_cast<Index>(bit); });
  if (!indices.empty() && indices.back() >= range.end) {
    throw CorruptDataError("bitmap code: a bit is set past the end of its range");
  }
}

}  // namespace sparsesync::cpu
