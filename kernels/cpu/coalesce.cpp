// CPU bodies of the check at the door and of coalesce.
#include "kernels/coalesce.h"

#include <algorithm>
#include <cstring>

namespace sparsesync::cpu {

IndexCheck check_indices(const Context&, Index rows, std::span<const Index> indices) {
  IndexCheck check;
  Index previous = -1;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Index index = indices[i];
    if (index < 0 || index >= rows) {
      check.outside = static_cast<Index>(i);
      return check;
    }
    check.coalesced = check.coalesced && index > previous;
    previous = index;
  }
  return check;
}

void coalesce(const Context& context, RowSparse from, Index rows, Index first_row,
              std::span<Index> indices, Matrix values, Count count, CoalesceWorkspace& workspace) {
  const auto nnz = static_cast<Index>(from.indices.size());
  SPARSESYNC_EXPECT(from.values.rows, ==, nnz);
  SPARSESYNC_EXPECT(static_cast<Index>(indices.size()), >=, nnz);
  const std::span<Index> order = workspace.order.reserve(nnz);
  std::copy(from.indices.begin(), from.indices.end(), indices.begin());
  sort_with_order(context, indices.first(from.indices.size()), order, rows, workspace.sort);

  const Index row_bytes = from.values.row_bytes();
  std::size_t written = 0;
  for_dtype(from.values.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    const Index width = from.values.width;
    std::byte* const memory =
        workspace.sums.reserve(width * static_cast<Index>(sizeof(Sum))).data();
    const std::span<Sum> sums(reinterpret_cast<Sum*>(memory), static_cast<std::size_t>(width));
    for (std::size_t begin = 0; begin < order.size();) {
      std::size_t end = begin + 1;
      while (end < order.size() && indices[end] == indices[begin]) ++end;
      std::byte* to = values.data + static_cast<Index>(written) * row_bytes;
      if (end == begin + 1) {
        std::memcpy(to, from.values.data + order[begin] * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      } else {
        std::fill(sums.begin(), sums.end(), Sum{0});
        for (std::size_t i = begin; i < end; ++i) {
          const std::byte* source = from.values.data + order[i] * row_bytes;
          for (Sum& sum : sums) {
            T value;
            std::memcpy(&value, source, sizeof(T));
            source += sizeof(T);
            sum += ValueTraits<T>::widen(value);
          }
        }
        for (const Sum sum : sums) {
          const T rounded = ValueTraits<T>::narrow(sum);
          std::memcpy(to, &rounded, sizeof(T));
          to += sizeof(T);
        }
      }
      indices[written++] = indices[begin] + first_row;
      begin = end;
    }
  });
  *count.location() = static_cast<Index>(written);
}

}  // namespace sparsesync::cpu
