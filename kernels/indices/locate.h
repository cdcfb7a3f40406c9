// Locates the indices of a range among increasing indices.
#pragma once

#include <span>

#include "kernels/base/context.h"
#include "kernels/base/host_copy.h"
#include "kernels/base/views.h"

namespace sparsesync {

namespace cpu {
/// Finds the positions in `indices` of those that lie in `range`: [bounds[0], bounds[1]). Does not
/// synchronize the stream.
/// @param indices  increasing
/// @param bounds   two counts in the context's memory
void locate(const Context& context, std::span<const Index> indices, IndexRange range,
            std::span<Index> bounds);

/// Does the same for several groups. Group j is [group_begin[j], group_begin[j + 1]) of `indices`
/// and increases. Its bounds, bounds[2j] and bounds[2j + 1], are positions in `indices`. Does not
/// synchronize the stream.
/// @param group_begin  groups + 1 counts in the context's memory
/// @param bounds       2 · groups counts in the context's memory
void locate_in_groups(const Context& context, std::span<const Index> indices,
                      std::span<const Index> group_begin, IndexRange range,
                      std::span<Index> bounds);
}  // namespace cpu

SPARSESYNC_OPERATION(locate);
SPARSESYNC_OPERATION(locate_in_groups);

/// Returns the positions in `indices` of those that lie in `range`. Synchronizes the stream.
/// @param indices  increasing
/// @param scratch  two numbers in the context's memory
inline IndexRange places_in(const Context& context, std::span<const Index> indices,
                            IndexRange range, std::span<Index> scratch) {
  Index bounds[2] = {};
  locate(context, indices, range, scratch);
  fetch_numbers(context, scratch, bounds);
  return {bounds[0], bounds[1]};
}

}  // namespace sparsesync
