// CUDA bodies of the check at the door and of coalesce.
#include "kernels/coalesce.h"

#include <array>

#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/select.h"
#include "kernels/error.h"

namespace sparsesync::cuda {
namespace {

// ---- The check.

/// What stands in memory where nothing was found.
constexpr auto kNowhere = ~0ULL;

/// found[0] = the first index outside [0, rows), found[1] = the first that is not above the one
/// before it: places, kNowhere before.
__global__ void check_kernel(std::uint64_t rows, const Index* indices, Index count,
                             unsigned long long* found) {
  unsigned long long outside = kNowhere;
  unsigned long long unordered = kNowhere;
  for (Index i = thread_number(); i < count; i += thread_count()) {
    const Index index = indices[i];
    const Index before = i == 0 ? -1 : indices[i - 1];
    const auto place = static_cast<unsigned long long>(i);
    // As unsigned numbers, so that a negative index is too large.
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

// ---- coalesce.

/// Items of each thread of a tile of sorted indices.
constexpr int kTileItems = 8;

/// Keeps the first of each row's sorted indices.
struct FirstOfRow {
  Index size;
  SortedWords sorted;
  Index first_row;
  Index* indices;  // receives the rows
  Index* count;    // and how many they are
  RowTerms terms;

  __device__ Index part(Index tile) const { return tile * kSelectTile<kTileItems>; }
  __device__ bool keeps(Index begin, Index item) const {
    const Index i = begin + item;
    return i < size && (i == 0 || sorted.key(i) != sorted.key(i - 1));
  }
  __device__ void put(Index begin, Index item, Index rank) const {
    const Index i = begin + item;
    const Index key = sorted.key(i);
    indices[rank] = key + first_row;
    const Index far = i + RowTerms::kMany - 1;
    terms.put(rank, i, far < size && sorted.key(far) == key);
  }
  __device__ void end(Index tile, Index kept) const {
    if (part(tile + 1) < size) return;
    terms.end(kept, size);
    *count = kept;
  }
};

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
  const std::span<Index> found = scratch.take<Index>(FoundIndices::kNumbers);
  start_check(context, rows, indices, found);
  std::array<Index, FoundIndices::kNumbers> first{};
  queue_of(context).download(std::as_bytes(found), std::as_writable_bytes(std::span(first)).data());
  return FoundIndices::check(first);
}

void coalesce(const Context& context, RowSparse from, IndexRange rows, std::span<Index> indices,
              Matrix values, Count count, CoalesceWorkspace&) {
  const auto size = std::ssize(from.indices);
  SPARSESYNC_EXPECT(from.values.rows, ==, size);
  SPARSESYNC_EXPECT(std::ssize(indices), >=, size);
  if (size == 0) return clear(context, count.location(), sizeof(Index));
  Scratch scratch(context);
  const SortedWords sorted = sort_by_key(context, scratch, from.indices,
                                         bit_width_below(static_cast<std::uint64_t>(rows.size())));
  const RowTerms terms = row_terms(context, scratch, size);
  const Index tiles = ceil_div(size, kSelectTile<kTileItems>);
  select<kTileItems>(context, tiles, fresh_tiles(context, scratch, tiles),
                     FirstOfRow{size, sorted, rows.begin, indices.data(), count.location(), terms});
  for_dtype(from.values.dtype, [&]<typename T>(T) {
    sum_terms<T>(context, terms, sorted, count.location(), size, from.values, values);
  });
}

}  // namespace sparsesync::cuda
