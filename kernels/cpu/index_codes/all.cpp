// CPU body of the index code of a whole range.
#include "kernels/cpu/index_codes/bodies.h"

#include <fmt/format.h>

#include <numeric>

namespace sparsesync::cpu {

void encode_as(All, IndexRange range, std::span<const Index> indices, std::span<std::byte>) {
  SPARSESYNC_EXPECT(std::ssize(indices), ==, range.size());
}

void decode_as(All, IndexRange range, std::span<const std::byte>, std::span<Index> indices) {
  if (std::ssize(indices) != range.size()) {
    throw CorruptDataError(
        fmt::format("all code: {} indices in a range of {}", indices.size(), range.size()));
  }
  std::iota(indices.begin(), indices.end(), range.begin);
}

}  // namespace sparsesync::cpu
