// CPU body of compact.
#include "kernels/compact.h"

#include <algorithm>
#include <cstring>

namespace sparsesync::cpu {
namespace {

template <typename T>
bool is_zero_row(const T* row, Index width) {
  return std::all_of(row, row + width, ValueTraits<T>::is_zero);
}

}  // namespace

void compact(const Context&, ConstMatrix dense, Index first_row, std::span<Index> indices,
             Matrix values, Count count) {
  SPARSESYNC_EXPECT(values.rows, ==, static_cast<Index>(indices.size()));
  SPARSESYNC_EXPECT(values.width, ==, dense.width);
  const Index row_bytes = dense.row_bytes();
  Index found = 0;
  for_dtype(dense.dtype, [&]<typename T>(T) {
    for (Index row = 0; row < dense.rows; ++row) {
      const std::byte* from = dense.data + row * row_bytes;
      if (is_zero_row(reinterpret_cast<const T*>(from), dense.width)) continue;
      if (found < values.rows) {
        indices[static_cast<std::size_t>(found)] = first_row + row;
        std::memcpy(values.data + found * row_bytes, from, static_cast<std::size_t>(row_bytes));
      }
      ++found;
    }
  });
  *count.location() = found;
}

}  // namespace sparsesync::cpu
