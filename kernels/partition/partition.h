// Partition: divides the rows of a gradient, into row groups or into even ranges, and leads back.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync {

/// What rows_at() is given.
struct PositionsJob {
  Index group = 0;
  std::span<const Index> positions;
  std::span<Index> rows;
};

namespace cpu {
/// Computes where each row stands and sorts by it. Does not synchronize the stream.
/// @param rows         distinct, in [0, R)
/// @param positions    receives the positions, group after group, increasing in each; rows.size()
///                     of them
/// @param sources      receives, beside each position, the place of its row in `rows`
/// @param group_begin  groups() + 1 numbers: group j's positions are
///                     [group_begin[j], group_begin[j + 1]). Counts in the context's memory, as
///                     Count is
/// @throws BudgetError if the workspace may not grow
void partition(const Context& context, const RowGroups& groups, std::span<const Index> rows,
               std::span<Index> positions, std::span<Index> sources, std::span<Index> group_begin,
               SortWorkspace& workspace);

/// rows[i] = the row at positions[i] of `group`. Does not synchronize the stream.
/// @throws CorruptDataError if a position holds no row (the last one of some groups is empty)
void rows_at(const Context& context, const RowGroups& groups, Index group,
             std::span<const Index> positions, std::span<Index> rows);

/// rows_at() of each job. Does not synchronize the stream.
/// @throws CorruptDataError as rows_at()
void rows_at_all(const Context& context, const RowGroups& groups,
                 std::span<const PositionsJob> jobs);

/// groups_of[i] = the group of rows[i]. Does not synchronize the stream.
/// @param groups  at most 2^31 of them
/// @param rows    in [0, R)
void find_groups(const Context& context, const RowGroups& groups, std::span<const Index> rows,
                 std::span<std::int32_t> groups_of);

/// Finds where each range begins, and counts its rows from there. Does not synchronize the stream.
/// @param rows         increasing, in [0, R)
/// @param indices      receives, for each row, its distance from the beginning of its range
/// @param range_begin  parts() + 1 numbers: range j's rows are [range_begin[j], range_begin[j + 1])
///                     of `rows`. Counts in the context's memory, as Count is
void divide_evenly(const Context& context, const EvenRanges& ranges, std::span<const Index> rows,
                   std::span<Index> indices, std::span<Index> range_begin);
}  // namespace cpu

SPARSESYNC_OPERATION(partition);
SPARSESYNC_OPERATION(rows_at);
SPARSESYNC_OPERATION(rows_at_all);
SPARSESYNC_OPERATION(find_groups);
SPARSESYNC_OPERATION(divide_evenly);

}  // namespace sparsesync
