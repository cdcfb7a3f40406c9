// CPU implementations of the input check and of coalesce().
#include "kernels/rows/coalesce.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/base/threads.h"
#include "kernels/rows/row.h"

namespace sparsesync::cpu {
namespace {

/// Returns the position where part `part` of the sorted indices begins. No row spans two parts.
std::size_t begin_of(std::span<const Index> sorted, int parts, int part) {
  const auto size = std::ssize(sorted);
  auto at = static_cast<std::size_t>(EvenRanges(size, parts).range(part).begin);
  while (at > 0 && at < sorted.size() && sorted[at] == sorted[at - 1]) ++at;
  return at;
}

/// Returns the end of the run of equal indices that begins at `begin`.
std::size_t end_of_row(std::span<const Index> sorted, std::size_t begin, std::size_t end) {
  std::size_t at = begin + 1;
  while (at < end && sorted[at] == sorted[begin]) ++at;
  return at;
}

/// Writes the sums of the rows in `range` of the sorted indices.
/// @param order  position of each sorted index in `from`
/// @param sums   scratch memory for one row
/// @param to     output address of the first row
template <typename T>
void sum_rows(ConstMatrix from, std::span<const Index> sorted, std::span<const Index> order,
              IndexRange range, typename ValueTraits<T>::Sum* sums, std::byte* to) {
  const auto end = static_cast<std::size_t>(range.end);
  with_constant(UsualWidths(), from.width, [&](auto width) {
    const Index row_bytes = width * static_cast<Index>(sizeof(T));
    for (auto begin = static_cast<std::size_t>(range.begin); begin < end;) {
      const std::size_t next = end_of_row(sorted, begin, end);
      for (std::size_t i = begin; i < next; ++i) {
        if (i + kRowsAhead < end) {
          prefetch_row(from.data + order[i + kRowsAhead] * row_bytes, row_bytes);
        }
      }
      if (next == begin + 1) {
        std::memcpy(to, from.data + order[begin] * row_bytes, static_cast<std::size_t>(row_bytes));
      } else {
        std::fill(sums, sums + width, typename ValueTraits<T>::Sum{0});
        for (std::size_t i = begin; i < next; ++i) {
          add_row<T>(from.data + order[i] * row_bytes, width, sums);
        }
        for (Index i = 0; i < width; ++i) store(to, i, ValueTraits<T>::narrow(sums[i]));
      }
      to += row_bytes;
      begin = next;
    }
  });
}

}  // namespace

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

void start_check(const Context& context, Index rows, std::span<const Index> indices,
                 std::span<Index> found) {
  SPARSESYNC_EXPECT(found.size(), ==, FoundIndices::kNumbers);
  const IndexCheck check = check_indices(context, rows, indices);
  found[0] = check.outside.value_or(FoundIndices::kNowhere);
  found[1] = check.coalesced ? FoundIndices::kNowhere : 0;
}

void coalesce(const Context& context, RowSparse from, IndexRange rows, std::span<Index> indices,
              Matrix values, Count count, CoalesceWorkspace& workspace) {
  const auto nnz = std::ssize(from.indices);
  SPARSESYNC_EXPECT(from.values.rows, ==, nnz);
  SPARSESYNC_EXPECT(std::ssize(indices), >=, nnz);
  const std::span<Index> order = workspace.order.reserve(nnz);
  const std::span<Index> sorted = indices.first(from.indices.size());
  std::copy(from.indices.begin(), from.indices.end(), sorted.begin());
  sort_with_order(context, sorted, order, rows.size(), workspace.sort);

  const Index row_bytes = from.values.row_bytes();
  const int parts = row_parts(context, nnz, row_bytes);
  // Output position of each part: the number of distinct rows in earlier parts.
  PartCounts first{};
  if (parts > 1) {
    for_each_part(context, nnz, parts, [&](int part, IndexRange) {
      const std::size_t end = begin_of(sorted, parts, part + 1);
      Index distinct = 0;
      for (std::size_t i = begin_of(sorted, parts, part); i < end; ++i) {
        distinct += i == 0 || sorted[i] != sorted[i - 1] ? 1 : 0;
      }
      first[static_cast<std::size_t>(part)] = distinct;
    });
  }
  std::exclusive_scan(first.begin(), first.end(), first.begin(), Index{0});
  for_dtype(from.values.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    const Index width = from.values.width;
    const Index sum_bytes = width * static_cast<Index>(sizeof(Sum));
    std::byte* const sums = workspace.sums.reserve(parts * sum_bytes).data();
    for_each_part(context, nnz, parts, [&](int part, IndexRange) {
      const IndexRange range{static_cast<Index>(begin_of(sorted, parts, part)),
                             static_cast<Index>(begin_of(sorted, parts, part + 1))};
      sum_rows<T>(from.values, sorted, order, range,
                  reinterpret_cast<Sum*>(sums + part * sum_bytes),
                  values.data + first[static_cast<std::size_t>(part)] * row_bytes);
    });
  });
  // Keep each row number once.
  const auto end = std::unique(sorted.begin(), sorted.end());
  std::for_each(sorted.begin(), end, [&](Index& index) { index += rows.begin; });
  *count.location() = end - sorted.begin();
}

}  // namespace sparsesync::cpu
