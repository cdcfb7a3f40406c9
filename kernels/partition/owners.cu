// CUDA implementations of find_places(), order_by_owner() and rows_of_owner().
#include "kernels/partition/owners.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/compaction.h"
#include "kernels/cuda/groups.h"

namespace sparsesync::cuda {
namespace {

/// Rows that a block looks up together. They are close to each other in the set.
constexpr int kOfThread = 4;
constexpr Index kFoundTogether = Index{kOfThread} * kBlock;

/// The rows of a job.
struct FindWork {
  const Index* rows;
  Index size;
  Index* places;
  unsigned long long* found;
  Index first_tile;
};

/// Finds rows in the set. Two warps locate the first and the last row of a block; each thread then
/// searches between them.
__global__ void find(const __grid_constant__ JobTable<FindWork> table, const Index* set,
                     Index set_size) {
  __shared__ Index bounds[2];
  const FindWork& work = table.of(blockIdx.x);
  const Index begin = (static_cast<Index>(blockIdx.x) - work.first_tile) * kFoundTogether;
  const Index end = smaller(begin + kFoundTogether, work.size);
  if (threadIdx.x < 2 * kWarp) {
    const LaneGroup warp(5);
    const Index bound =
        warp.lower_bound(set, set_size, work.rows[warp.number() == 0 ? begin : end - 1]);
    if (warp.lane() == 0) bounds[warp.number()] = bound;
  }
  __syncthreads();
  const Index first = bounds[0];
  const Index span = bounds[1] - first;
  Index sought[kOfThread];
  for (int k = 0; k < kOfThread; ++k) {
    const Index i = begin + k * kBlock + threadIdx.x;
    sought[k] = i < end ? work.rows[i] : 0;
  }
  for (int k = 0; k < kOfThread; ++k) {
    const Index i = begin + k * kBlock + threadIdx.x;
    const Index place = first + lower_bound(set + first, span, sought[k]);
    const bool is_there = place < set_size && set[place] == sought[k];
    // Write a valid position for a missing row, because later operations use it as an address.
    if (i < end) work.places[i] = is_there ? place : 0;
    const unsigned missing = __ballot_sync(kAllLanes, i < end && !is_there ? 1 : 0);
    const unsigned lane = threadIdx.x % kWarp;
    if (missing != 0 && lane == static_cast<unsigned>(__ffs(static_cast<int>(missing))) - 1) {
      atomicMin(work.found, static_cast<unsigned long long>(i));
    }
  }
  if (begin == 0 && threadIdx.x == 0) {
    atomicMin(work.found, static_cast<unsigned long long>(work.size));
  }
}

/// Lists of a launch of keep_some().
struct OwnedLists {
  const Index* rows[kJobs];
  const Index* places[kJobs];
};

/// The owner of each row of the union. A row that was not found may have any position.
struct Owners {
  const std::int32_t* of_row;
  std::uint64_t rows;

  __device__ std::int32_t of(Index place) const {
    return static_cast<std::uint64_t>(place) < rows ? of_row[place] : 0;
  }
};

Owners owners_of(std::span<const std::int32_t> owners) {
  return {owners.data(), owners.size()};
}

void keep_owned(const Context& context, const JobTable<KeepWork>& table, const OwnedLists& lists,
                const Owners& owners, std::int32_t owner) {
  Scratch scratch(context);
  keep_some(context, scratch, table, [=] __device__(int list, Index i, Index* row) {
    *row = lists.rows[list][i];
    return owners.of(lists.places[list][i]) == owner;
  });
}

}  // namespace

void find_places_all(const Context& context, std::span<const Index> set,
                     std::span<const PlacesJob> jobs, std::span<Index> found) {
  SPARSESYNC_EXPECT(jobs.size(), ==, found.size());
  // Initialize to the largest number. Missing rows, and finally the number of rows, lower it.
  set_bytes(context, found.data(), 0xFF, found.size_bytes());
  std::size_t next = 0;
  const auto add_to = [&](JobTable<FindWork>& table, const PlacesJob& job) {
    SPARSESYNC_EXPECT(job.rows.size(), ==, job.places.size());
    Index* const count = &found[next++];
    if (job.rows.empty()) return clear(context, count, sizeof(Index));
    const auto size = std::ssize(job.rows);
    table.add(
        {job.rows.data(), size, job.places.data(), reinterpret_cast<unsigned long long*>(count), 0},
        ceil_div(size, kFoundTogether));
  };
  for_tables<FindWork>(jobs, add_to, [&](const JobTable<FindWork>& table) {
    launch<find>(context, table.tiles(), kBlock, table, set.data(), std::ssize(set));
  });
}

void find_places(const Context& context, std::span<const Index> set, std::span<const Index> rows,
                 std::span<Index> places, Count found) {
  const PlacesJob job{rows, places};
  find_places_all(context, set, {&job, 1}, {found.location(), 1});
}

void order_by_owner(const Context& context, std::span<const std::int32_t> owners,
                    std::span<const Index> places, std::span<Index> order, std::span<Index> begin) {
  SPARSESYNC_EXPECT(places.size(), ==, order.size());
  Scratch scratch(context);
  const auto size = std::ssize(places);
  const Index groups = std::ssize(begin) - 1;
  const auto place_bits = static_cast<unsigned>(bit_width_below(static_cast<std::uint64_t>(size)));
  const int owner_bits = std::max(bit_width_below(static_cast<std::uint64_t>(groups)), 1);
  const Owners owner = owners_of(owners);
  const Index* const place_of = places.data();
  // The unsorted words use the memory of the result; the sorted ones are in scratch memory.
  auto* const unsorted = reinterpret_cast<std::uint64_t*>(order.data());
  for_each(context, size, [=] __device__(Index i) {
    const auto of_row = static_cast<Index>(owner.of(place_of[i]));
    const auto group = static_cast<std::uint64_t>(of_row >= 0 && of_row < groups ? of_row : 0);
    unsorted[i] = group << place_bits | static_cast<std::uint64_t>(i);
  });
  const std::uint64_t* const sorted =
      sort_words(context, scratch, {unsorted, order.size()}, static_cast<int>(place_bits),
                 static_cast<int>(place_bits) + owner_bits)
          .data();
  Index* const out = order.data();
  Index* const begin_of = begin.data();
  for_each(context, std::max(size, groups + 1), [=] __device__(Index i) {
    if (i < size) {
      out[i] = static_cast<Index>(sorted[i] & low_mask(static_cast<int>(place_bits)));
    }
    if (i <= groups) {
      begin_of[i] = lower_bound(sorted, size, static_cast<std::uint64_t>(i) << place_bits);
    }
  });
}

void rows_of_owner_all(const Context& context, std::span<const std::int32_t> owners,
                       std::span<const OwnedJob> jobs, std::int32_t owner,
                       std::span<Index> counts) {
  SPARSESYNC_EXPECT(jobs.size(), ==, counts.size());
  const Owners all = owners_of(owners);
  std::size_t next = 0;
  int listed = 0;
  OwnedLists lists{};
  const auto add_to = [&](JobTable<KeepWork>& table, const OwnedJob& job) {
    SPARSESYNC_EXPECT(job.rows.size(), ==, job.places.size());
    SPARSESYNC_EXPECT(job.rows.size(), <=, job.out.size());
    Index* const count = &counts[next++];
    if (job.rows.empty()) return clear(context, count, sizeof(Index));
    lists.rows[listed] = job.rows.data();
    lists.places[listed++] = job.places.data();
    const KeepWork work{std::ssize(job.rows), job.out.data(), count, 0};
    table.add(work, work.tiles());
  };
  for_tables<KeepWork>(jobs, add_to, [&](const JobTable<KeepWork>& table) {
    keep_owned(context, table, lists, all, owner);
    listed = 0;
  });
}

void rows_of_owner(const Context& context, std::span<const std::int32_t> owners,
                   std::span<const Index> rows, std::span<const Index> places, std::int32_t owner,
                   std::span<Index> out, Count count) {
  const OwnedJob job{rows, places, out};
  rows_of_owner_all(context, owners, {&job, 1}, owner, {count.location(), 1});
}

}  // namespace sparsesync::cuda
