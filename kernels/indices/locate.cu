// CUDA implementations of the locate operations.
#include "kernels/indices/locate.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {
namespace {

constexpr int kGroupsOfBlock = 4;

/// A warp's search for the first element that is not below a bound, among increasing elements. Each
/// step has one memory latency and leaves one 33rd of the elements.
struct Search {
  Index bound;
  Index begin;
  Index size;

  __device__ Index step() const { return size / (kWarp + 1) + 1; }
  /// Returns whether the element that this lane probes is below the bound; false past the end.
  __device__ bool is_below(const Index* elements) const {
    const Index at = (static_cast<Index>(threadIdx.x) % kWarp + 1) * step() - 1;
    return at < size && elements[begin + at] < bound;
  }
  /// Narrows the search.
  /// @param below  number of lanes that saw an element below the bound; these are the first lanes
  __device__ void go_on(int below) {
    const Index passed = below * step();
    const Index left = size - passed;
    const Index between = step() - 1;
    begin += passed;
    size = left < between ? left : between;
  }
};

/// Runs one warp per group. Its two searches overlap their memory latencies. Even for damaged
/// input, 0 <= bounds[0] <= bounds[1] <= size.
/// @param group_begin  null: all indices are one group
__global__ void locate_kernel(const Index* indices, Index size, const Index* group_begin,
                              Index groups, IndexRange range, Index* bounds) {
  for (Index group = thread_number() / kWarp; group < groups; group += thread_count() / kWarp) {
    Index begin = 0;
    Index end = size;
    if (group_begin != nullptr) {
      begin = group_begin[group];
      end = group_begin[group + 1];
      if (begin < 0 || end < begin || end > size) begin = end = 0;
    }
    Search first{range.begin, begin, end - begin};
    Search last{range.end, begin, end - begin};
    while (first.size > 0 || last.size > 0) {
      const bool first_below = first.is_below(indices);
      const bool last_below = last.is_below(indices);
      first.go_on(__popc(__ballot_sync(kAllLanes, first_below ? 1 : 0)));
      last.go_on(__popc(__ballot_sync(kAllLanes, last_below ? 1 : 0)));
    }
    if (threadIdx.x % kWarp == 0) {
      bounds[2 * group] = first.begin;
      bounds[2 * group + 1] = last.begin < first.begin ? first.begin : last.begin;
    }
  }
}

void launch_locate(const Context& context, std::span<const Index> indices, const Index* group_begin,
                   Index groups, IndexRange range, std::span<Index> bounds) {
  if (groups == 0) return;
  const int threads = kWarp * static_cast<int>(std::min<Index>(groups, kGroupsOfBlock));
  launch<locate_kernel>(context, blocks_for(context, groups * kWarp, threads), threads,
                        indices.data(), std::ssize(indices), group_begin, groups, range,
                        bounds.data());
}

}  // namespace

void locate(const Context& context, std::span<const Index> indices, IndexRange range,
            std::span<Index> bounds) {
  launch_locate(context, indices, nullptr, 1, range, bounds);
}

void locate_in_groups(const Context& context, std::span<const Index> indices,
                      std::span<const Index> group_begin, IndexRange range,
                      std::span<Index> bounds) {
  SPARSESYNC_EXPECT(bounds.size(), ==, 2 * (group_begin.size() - 1));
  const Index groups = std::ssize(group_begin) - 1;
  launch_locate(context, indices, group_begin.data(), groups, range, bounds);
}

}  // namespace sparsesync::cuda
