// Aggregation: sums the workers' parts in rank order, independent of arrival order.
#pragma once

#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"

namespace sparsesync {

/// Scratch memory of unite() and aggregate().
struct AggregateWorkspace {
  explicit AggregateWorkspace(const Context& context)
      : words(context), slots(context), table(context), sums(context), sort(context) {}
  Buffer<std::uint64_t> words;  // one bit per index of the range
  Buffer<Index> slots;
  Buffer<std::uint32_t> table;  // lookup table for the rows of a block
  Buffer<std::byte> sums;       // sums of a block, if sums have another dtype than elements
  SortWorkspace sort;
};

/// Returns whether a union is built by direct addressing, with a bit per index of the range. This
/// clears and reads range / 64 words; a merge moves each index several times. Above 16 words per
/// index, the merge is cheaper.
constexpr bool unites_by_address(Index range, Index total) {
  return range / 64 / 16 <= total;
}

/// Returns the bytes of scratch memory that unite() needs for `total` indices in a range of this
/// size.
constexpr Index unite_workspace_bytes(Index range, Index total) {
  constexpr Index kIndexBytes = sizeof(Index);
  return unites_by_address(range, total) ? range / 8 : 2 * kIndexBytes * total;
}

namespace cpu {
/// Computes the sorted union of increasing sets of indices. Uses direct addressing (a bit per index
/// of the range), or merging if the range is much larger than the sets. Does not synchronize the
/// stream.
/// @param range  contains all indices; otherwise behaviour is undefined
/// @param out    capacity for the smaller of range.size() and the total size of all sets
/// @param count  receives the size of the union
/// @throws BudgetError if the workspace may not grow
void unite(const Context& context, IndexRange range, std::span<const std::span<const Index>> sets,
           std::span<Index> out, Count count, AggregateWorkspace& workspace);

/// Sums the parts: out.row(u) is the sum over parts p, in order, of the row of p with index
/// united[u].
///
/// The sum starts from +0 in the sum type. It is multiplied once by `scale` (in the sum type) and
/// rounded once. The bits are the same on every device and for every arrival order, except those of
/// NaNs (see Context). Does not synchronize the stream.
/// @param united  result of unite() for the parts' indices
/// @param parts   coalesced; values of any alignment; dtype and width of `out`
/// @param scale   1 for integers
/// @param out     united.size() rows, aligned for their dtype
/// @throws BudgetError if the workspace may not grow
void aggregate(const Context& context, std::span<const Index> united,
               std::span<const RowSparse> parts, double scale, Matrix out,
               AggregateWorkspace& workspace);

/// Does the same as aggregate(), directly after unite(), when the host does not know the number of
/// rows yet. Does not synchronize the stream.
/// @param united  capacity for rows; the first `count` are valid
/// @param out     united.size() rows; the first `count` are written
/// @throws BudgetError if the workspace may not grow
void aggregate_counted(const Context& context, std::span<const Index> united, Count count,
                       std::span<const RowSparse> parts, double scale, Matrix out,
                       AggregateWorkspace& workspace);
}  // namespace cpu

SPARSESYNC_OPERATION(unite);
SPARSESYNC_OPERATION(aggregate);
SPARSESYNC_OPERATION(aggregate_counted);

}  // namespace sparsesync
