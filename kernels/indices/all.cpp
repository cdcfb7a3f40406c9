// CPU implementation of the index code for a complete range.
#include "kernels/indices/index_code_cpu.h"

#include <numeric>

namespace sparsesync::cpu {

void encode_as(All, IndexRange, std::span<const Index>, std::span<std::byte>) {}

void decode_as(All, IndexRange range, std::span<const std::byte>, std::span<Index> indices) {
  std::iota(indices.begin(), indices.end(), range.begin);
}

}  // namespace sparsesync::cpu
