// Where groups begin among things that are in the order of their groups. For the sources of the
// bodies alone.
#pragma once

#include <cuda_runtime.h>

#include "kernels/base/views.h"

namespace sparsesync::cuda {

/// Called for each place of a list in the order of its groups, writes group_begin[0] to
/// group_begin[groups]: a thread that sees the group change writes where all groups up to its own
/// begin, the last one also where those behind it do. Of an empty list nobody writes them.
/// @param before  the group of the place before; anything for the first one
__device__ inline void write_begins(Index place, Index size, Index before, Index group,
                                    Index groups, Index* group_begin) {
  for (Index next = place == 0 ? 0 : before + 1; next <= group; ++next) group_begin[next] = place;
  if (place + 1 < size) return;
  for (Index next = group + 1; next <= groups; ++next) group_begin[next] = size;
}

}  // namespace sparsesync::cuda
