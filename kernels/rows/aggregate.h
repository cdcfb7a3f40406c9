// Aggregate: the sum of the workers' parts, added in rank order whatever arrived first.
#pragma once

#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"

namespace sparsesync {

/// Scratch of unite() and aggregate().
struct AggregateWorkspace {
  explicit AggregateWorkspace(const Context& context)
      : words(context), slots(context), table(context), sums(context), sort(context) {}
  Buffer<std::uint64_t> words;  // one bit for each index of the range
  Buffer<Index> slots;
  Buffer<std::uint32_t> table;  // where the rows of a block are
  Buffer<std::byte> sums;       // of a block, where elements are not their own sums
  SortWorkspace sort;
};

/// Whether a union is made by direct address. A bit for each index of the range costs range / 64
/// words to clear and to read; a merge moves each index several times. Past 16 words for each index
/// the merge is the cheaper one.
constexpr bool unites_by_address(Index range, Index total) {
  return range / 64 / 16 <= total;
}

/// Bytes of scratch that unite() takes for `total` indices in a range of this size.
constexpr Index unite_workspace_bytes(Index range, Index total) {
  constexpr Index kIndexBytes = sizeof(Index);
  return unites_by_address(range, total) ? range / 8 : 2 * kIndexBytes * total;
}

namespace cpu {
/// The union of increasing sets of indices, increasing. By direct address (a bit for each index of
/// the range) or, where the range is much larger than what is in it, by merging. Does not
/// synchronize the stream.
/// @param range  all indices lie in it (undefined otherwise)
/// @param out    room for as many indices as all sets together, or range.size() where that is less
/// @param count  receives how many were written
/// @throws BudgetError if the workspace may not grow
void unite(const Context& context, IndexRange range, std::span<const std::span<const Index>> sets,
           std::span<Index> out, Count count, AggregateWorkspace& workspace);

/// out.row(u) = the sum over parts p, in their order, of the row of p whose index is united[u]:
/// from +0, in the sum type, multiplied once by `scale` (in the sum type), rounded once. The same
/// bits on every device, except those of NaNs (kernels/base/context.h), and at every arrival order.
/// Does not synchronize the stream.
/// @param united  what unite() made of the parts' indices
/// @param parts   coalesced; values of any alignment; dtype and width as `out`
/// @param scale   1 where elements are integers
/// @param out     united.size() rows, aligned for their dtype
/// @throws BudgetError if the workspace may not grow
void aggregate(const Context& context, std::span<const Index> united,
               std::span<const RowSparse> parts, double scale, Matrix out,
               AggregateWorkspace& workspace);

/// The same right behind unite(), where the host does not know yet how many rows there are. Does
/// not synchronize the stream.
/// @param united  room for rows, of which `count` are there
/// @param out     united.size() rows, of which as many are written
/// @throws BudgetError if the workspace may not grow
void aggregate_counted(const Context& context, std::span<const Index> united, Count count,
                       std::span<const RowSparse> parts, double scale, Matrix out,
                       AggregateWorkspace& workspace);
}  // namespace cpu

SPARSESYNC_OPERATION(unite);
SPARSESYNC_OPERATION(aggregate);
SPARSESYNC_OPERATION(aggregate_counted);

}  // namespace sparsesync
