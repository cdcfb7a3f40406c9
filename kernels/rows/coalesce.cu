// CUDA implementations of the input check and of coalesce().
#include "kernels/rows/coalesce.h"

#include <array>

#include "kernels/base/error.h"
#include "kernels/rows/row_sums.cuh"

namespace sparsesync::cuda {
namespace {

/// Value that means "none found".
constexpr auto kNowhere = ~0ULL;

/// Finds positions of invalid indices; kNowhere means none. found[0] is the first index outside [0,
/// rows). found[1] is the first index that is not above its predecessor.
__global__ void check_kernel(std::uint64_t rows, const Index* indices, Index count,
                             unsigned long long* found) {
  unsigned long long outside = kNowhere;
  unsigned long long unordered = kNowhere;
  for (Index i = thread_number(); i < count; i += thread_count()) {
    const Index index = indices[i];
    const Index before = i == 0 ? -1 : indices[i - 1];
    const auto place = static_cast<unsigned long long>(i);
    // Compare as unsigned numbers, so that a negative index is too large.
    if (outside == kNowhere && static_cast<std::uint64_t>(index) >= rows) outside = place;
    if (unordered == kNowhere && index <= before) unordered = place;
  }
  __shared__ unsigned long long first[2];
  if (threadIdx.x < 2) first[threadIdx.x] = kNowhere;
  __syncthreads();
  if (outside != kNowhere) atomicMin(&first[0], outside);
  if (unordered != kNowhere) atomicMin(&first[1], unordered);
  __syncthreads();
  if (threadIdx.x < 2 && first[threadIdx.x] != kNowhere) {
    atomicMin(&found[threadIdx.x], first[threadIdx.x]);
  }
}

}  // namespace

void start_check(const Context& context, Index rows, std::span<const Index> indices,
                 std::span<Index> found) {
  SPARSESYNC_EXPECT(found.size(), ==, FoundIndices::kNumbers);
  static_assert(static_cast<Index>(kNowhere) == FoundIndices::kNowhere);
  set_bytes(context, found.data(), 0xFF, found.size_bytes());
  const auto count = std::ssize(indices);
  launch<check_kernel>(context, blocks_for(context, count), kBlock,
                       static_cast<std::uint64_t>(rows), indices.data(), count,
                       reinterpret_cast<unsigned long long*>(found.data()));
}

IndexCheck check_indices(const Context& context, Index rows, std::span<const Index> indices) {
  if (indices.empty()) return {};
  Scratch scratch(context);
  const std::span<Index> found = scratch.allocate<Index>(FoundIndices::kNumbers);
  start_check(context, rows, indices, found);
  std::array<Index, FoundIndices::kNumbers> first{};
  stream_of(context).download(std::as_bytes(found),
                              std::as_writable_bytes(std::span(first)).data());
  return FoundIndices::check(first);
}

void coalesce(const Context& context, RowSparse from, IndexRange rows, std::span<Index> indices,
              Matrix values, Count count, CoalesceWorkspace&) {
  const auto size = std::ssize(from.indices);
  SPARSESYNC_EXPECT(from.values.rows, ==, size);
  SPARSESYNC_EXPECT(std::ssize(indices), >=, size);
  if (size == 0) return clear(context, count.location(), sizeof(Index));
  Scratch scratch(context);
  const DistinctRows distinct = find_distinct(context, scratch, from.indices, rows.size(),
                                              rows.begin, indices, count.location());
  for_dtype(from.values.dtype,
            [&]<typename T>(T) { write_sums<T>(context, distinct, from.values, values); });
}

}  // namespace sparsesync::cuda
