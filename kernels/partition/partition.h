// Partition: divides the rows of a gradient into row groups or into even ranges, and inverts the
// division.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/sort.h"
#include "kernels/partition/row_groups.h"

namespace sparsesync {

/// Arguments of rows_at().
struct PositionsJob {
  Index group = 0;
  std::span<const Index> positions;
  std::span<Index> rows;
};

namespace cpu {
/// Computes the group and position of each row and sorts by them. Does not synchronize the stream.
/// @param rows         distinct, in [0, R)
/// @param positions    receives the positions, group after group, increasing in each; rows.size()
///                     elements
/// @param sources      receives, for each position, the index of its row in `rows`
/// @param group_begin  groups() + 1 numbers: group j has positions [group_begin[j], group_begin[j +
///                     1]). In the context's memory, like Count.
/// @throws BudgetError if the workspace may not grow
void partition(const Context& context, const RowGroups& groups, std::span<const Index> rows,
               std::span<Index> positions, std::span<Index> sources, std::span<Index> group_begin,
               SortWorkspace& workspace);

/// Finds the row at each position of `group`. Does not synchronize the stream.
/// @throws CorruptDataError if a position holds no row (the last position of some groups is empty)
void rows_at(const Context& context, const RowGroups& groups, Index group,
             std::span<const Index> positions, std::span<Index> rows);

/// Runs rows_at() for each job. Does not synchronize the stream.
/// @throws CorruptDataError like rows_at()
void rows_at_all(const Context& context, const RowGroups& groups,
                 std::span<const PositionsJob> jobs);

/// Finds the group of each row. Does not synchronize the stream.
/// @param groups  at most 2^31 groups
/// @param rows    in [0, R)
void find_groups(const Context& context, const RowGroups& groups, std::span<const Index> rows,
                 std::span<std::int32_t> groups_of);

/// Finds the begin of each range, and the index of each row within its range. Does not synchronize
/// the stream.
/// @param rows         increasing, in [0, R)
/// @param indices      receives the distance of each row from the begin of its range
/// @param range_begin  parts() + 1 numbers: range j has [range_begin[j], range_begin[j + 1]) of
///                     `rows`. In the context's memory, like Count.
void divide_evenly(const Context& context, const EvenRanges& ranges, std::span<const Index> rows,
                   std::span<Index> indices, std::span<Index> range_begin);
}  // namespace cpu

SPARSESYNC_OPERATION(partition);
SPARSESYNC_OPERATION(rows_at);
SPARSESYNC_OPERATION(rows_at_all);
SPARSESYNC_OPERATION(find_groups);
SPARSESYNC_OPERATION(divide_evenly);

}  // namespace sparsesync
