// CUDA bodies of what takes elements by their magnitudes.
#include "kernels/magnitude.h"

#include <algorithm>

#include "kernels/cuda/tile_scan.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

using sparsesync::detail::kCutSample;
using Counter = unsigned long long;

__device__ Counter* counter_at(Index* number) {
  return reinterpret_cast<Counter*>(number);
}

/// How far the search for a cut has come. In the device's memory.
struct Search {
  // What the sample says: the level lies in [low, high].
  std::uint32_t low = 1;
  std::uint32_t high = 0x7FFFFFFF;
  Index above = 0;  // elements above `high`
  Index near = 0;   // and in [low, high]
  // The digits that are known, and which element it is of those that have them.
  std::uint32_t level = 0;
  bool among_all = false;  // or among those near by
  Index left = 0;
};

/// Sorts the sample, decreasing: one block.
__global__ void bracket(const float* values, Index size, Index high, Index low, Search* search) {
  __shared__ std::uint32_t sample[kCutSample];
  for (Index i = threadIdx.x; i < kCutSample; i += blockDim.x) {
    sample[i] = magnitude_of(values[sparsesync::detail::sampled_place(i, size)]);
  }
  // Bitonic.
  for (Index length = 2; length <= kCutSample; length *= 2) {
    for (Index distance = length / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (Index i = threadIdx.x; i < kCutSample / 2; i += blockDim.x) {
        const Index first = i / distance * 2 * distance + i % distance;
        const Index second = first + distance;
        const bool increases = (first & length) != 0;
        const std::uint32_t a = sample[first];
        const std::uint32_t b = sample[second];
        if ((a > b) == increases) {
          sample[first] = b;
          sample[second] = a;
        }
      }
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (high >= 0) search->high = sample[high];
  if (low < kCutSample) search->low = sample[low] > 1 ? sample[low] : 1;
}

/// Counts elements, and notes the magnitudes of those near by, in any order, as there is room.
__global__ void look(const float* values, Index size, std::uint32_t* near, Index room,
                     Search* search) {
  const std::uint32_t low = search->low;
  const std::uint32_t high = search->high;
  Index above = 0;
  for (Index i = thread_number(); i < size; i += thread_count()) {
    const std::uint32_t magnitude = magnitude_of(values[i]);
    if (magnitude > high) {
      ++above;
    } else if (magnitude >= low) {
      const auto place = static_cast<Index>(atomicAdd(counter_at(&search->near), Counter{1}));
      if (place < room) near[place] = magnitude;
    }
  }
  if (above > 0) atomicAdd(counter_at(&search->above), static_cast<Counter>(above));
}

constexpr unsigned kDigit = 8;
constexpr int kDigits = 1 << kDigit;

/// How many of those that have the known digits have which next one.
__global__ void count_digits(const float* values, Index size, const std::uint32_t* near,
                             const Search* search, unsigned shift, Index* histogram) {
  __shared__ unsigned own[kDigits];
  own[threadIdx.x] = 0;
  __syncthreads();
  const bool among_all = search->among_all;
  const std::uint32_t level = search->level;
  const Index count = among_all ? size : search->near;
  for (Index i = thread_number(); i < count; i += thread_count()) {
    const std::uint32_t magnitude = among_all ? magnitude_of(values[i]) : near[i];
    const unsigned above = shift + kDigit;
    if (std::uint64_t{magnitude} >> above != std::uint64_t{level} >> above) continue;
    atomicAdd(&own[magnitude >> shift & (kDigits - 1)], 1U);
  }
  __syncthreads();
  if (own[threadIdx.x] != 0) {
    atomicAdd(counter_at(&histogram[threadIdx.x]), Counter{own[threadIdx.x]});
  }
}

/// The most digits that a block counts: what its 32-bit counters hold.
constexpr Index kMostOfThread = Index{1} << 23;

void find(const Context& context, std::span<const float> values, Index k, MagnitudeCut* cut,
          std::span<std::uint32_t> near) {
  const auto size = std::ssize(values);
  const float* const from = values.data();
  const Index room = std::ssize(near);
  Scratch scratch(context);
  Search* const search = scratch.take<Search>(1).data();
  const std::span<Index> histogram = scratch.take<Index>(kDigits);
  Index* const digits = histogram.data();
  for_each(context, 1, [=] __device__(Index) { *search = Search{}; });
  if (sparsesync::detail::is_sampled(size)) {
    const auto [high, low] = sparsesync::detail::sample_ranks(k, size);
    launch(context, 1, 1024, bracket, from, size, high, low, search);
  }
  launch(context, blocks_for(context, size), kBlock, look, from, size, near.data(), room, search);
  for_each(context, 1, [=] __device__(Index) {
    const bool is_near =
        search->above < k && k <= search->above + search->near && search->near <= room;
    search->among_all = !is_near;
    search->left = is_near ? k - search->above : k;
  });
  const Index blocks = std::max(blocks_for(context, size), ceil_div(size, kMostOfThread * kBlock));
  for (unsigned shift = 24;; shift -= kDigit) {
    clear(context, digits, histogram.size_bytes());
    launch(context, blocks, kDigits, count_digits, from, size, near.data(), search, shift, digits);
    for_each(context, 1, [=] __device__(Index) {
      int digit = kDigits - 1;
      for (; digit > 0 && digits[digit] < search->left; --digit) search->left -= digits[digit];
      search->level |= static_cast<std::uint32_t>(digit) << shift;
    });
    if (shift == 0) break;
  }
  for_each(context, 1, [=] __device__(Index) {
    // Of zeros none are taken: all that are not are.
    *cut = search->level == 0 ? MagnitudeCut{} : MagnitudeCut{search->level, search->left};
  });
}

/// Elements that a tile of take() has for each thread.
constexpr int kItems = 8;
constexpr Index kTakeTile = Index{kItems} * kBlock;

/// What take() reads and writes.
struct TakeTask {
  float* residual;
  Index size;
  float* velocity;  // null: left as it is
  const MagnitudeCut* cut;
  Index* indices;
  std::byte* values;
  float* velocities;
  Index room;
  Index* count;
  Index* not_finite;
};

template <typename T>
__device__ void take_one(const TakeTask& task, Index element, Index place) {
  if (place >= task.room) return;
  sparsesync::detail::OwedElement owed{task.residual[element], 0};
  T value{};
  if (!owed.take(&value)) atomicAdd(counter_at(task.not_finite), Counter{1});
  task.residual[element] = owed.residual;
  task.indices[place] = element;
  store(task.values, place, value);
  if (task.velocity == nullptr) return;
  task.velocities[place] = task.velocity[element];
  task.velocity[element] = 0;
}

/// As select() of kernels/cuda/select.h, with two counts: of elements above the level and on it.
template <typename T>
__global__ void take(TakeTask task, Index tile_count, Tiles above_tiles, Tiles on_tiles) {
  __shared__ Index shared;
  __shared__ Index sums[kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned lanes_before = (1U << lane) - 1;
  const std::uint32_t level = task.cut->level;
  const Index ties = task.cut->ties;
  // Of a tile each warp has elements that follow each other, each of its lanes every 32nd.
  const Index first = static_cast<Index>(threadIdx.x / kWarp) * kItems * kWarp + lane;
  for (Index tile = above_tiles.take(&shared); tile < tile_count;
       tile = above_tiles.take(&shared)) {
    unsigned is_above = 0;
    unsigned is_on = 0;
    for (int i = 0; i < kItems; ++i) {
      const Index element = tile * kTakeTile + first + i * kWarp;
      const std::uint32_t magnitude =
          element < task.size ? magnitude_of(task.residual[element]) : 0;
      is_above |= (magnitude > level ? 1U : 0U) << static_cast<unsigned>(i);
      is_on |= (magnitude == level && magnitude != 0 ? 1U : 0U) << static_cast<unsigned>(i);
    }
    Index above_here = 0;
    Index on_here = 0;
    const Index above_thread =
        block_exclusive_sum(static_cast<Index>(__popc(is_above)), sums, &above_here);
    __syncthreads();
    const Index on_thread = block_exclusive_sum(static_cast<Index>(__popc(is_on)), sums, &on_here);
    const Index above_tile = above_tiles.before(tile, above_here, &shared);
    const Index on_tile = on_tiles.before(tile, on_here, &shared);
    Index above = above_tile + __shfl_sync(kAllLanes, above_thread, 0);
    Index on = on_tile + __shfl_sync(kAllLanes, on_thread, 0);
    for (int i = 0; i < kItems; ++i) {
      const bool own_above = (is_above >> static_cast<unsigned>(i) & 1U) != 0;
      const bool own_on = (is_on >> static_cast<unsigned>(i) & 1U) != 0;
      const unsigned warp_above = __ballot_sync(kAllLanes, own_above ? 1 : 0);
      const unsigned warp_on = __ballot_sync(kAllLanes, own_on ? 1 : 0);
      const Index rank = on + __popc(warp_on & lanes_before);
      if (own_above || (own_on && rank < ties)) {
        take_one<T>(task, tile * kTakeTile + first + i * kWarp,
                    above + __popc(warp_above & lanes_before) + (rank < ties ? rank : ties));
      }
      above += __popc(warp_above);
      on += __popc(warp_on);
    }
    if (tile == tile_count - 1 && threadIdx.x == 0) {
      const Index all_on = on_tile + on_here;
      *task.count = above_tile + above_here + (all_on < ties ? all_on : ties);
    }
  }
}

}  // namespace

void find_cut(const Context& context, std::span<const float> values, Index k, MagnitudeCut* cut,
              CutWorkspace& workspace) {
  const auto size = std::ssize(values);
  SPARSESYNC_EXPECT(k, >=, Index{0});
  if (k == 0 || k >= size) {
    const MagnitudeCut all_or_none{k == 0 ? 0x7FFFFFFFU : 0U, 0};
    for_each(context, 1, [=] __device__(Index) { *cut = all_or_none; });
    return;
  }
  find(context, values, k, cut, workspace.near.reserve(sparsesync::detail::room_near(k, size)));
}

void count_taken(const Context& context, std::span<const float> values, const MagnitudeCut* cut,
                 Count count) {
  const float* const from = values.data();
  Scratch scratch(context);
  const std::span<Index> counts = scratch.take<Index>(2);
  Index* const above = counts.data();
  clear(context, above, counts.size_bytes());
  for_each(context, std::ssize(values), [=] __device__(Index i) {
    const std::uint32_t magnitude = magnitude_of(from[i]);
    if (magnitude > cut->level) {
      atomicAdd(counter_at(above), Counter{1});
    } else if (magnitude == cut->level && magnitude != 0) {
      atomicAdd(counter_at(above + 1), Counter{1});
    }
  });
  Index* const to = count.location();
  for_each(context, 1, [=] __device__(Index) {
    *to = above[0] + (above[1] < cut->ties ? above[1] : cut->ties);
  });
}

void take_largest(const Context& context, std::span<float> residual, std::span<float> velocity,
                  const MagnitudeCut* cut, const Taken& taken, Count count, Count not_finite) {
  sparsesync::detail::expect_places(residual, velocity, taken);
  if (residual.empty()) return clear(context, count.location(), sizeof(Index));
  const bool has_velocity = !taken.velocities.empty();
  const TakeTask task{residual.data(),
                      std::ssize(residual),
                      has_velocity ? velocity.data() : nullptr,
                      cut,
                      taken.indices.data(),
                      taken.values.data,
                      taken.velocities.data(),
                      std::ssize(taken.indices),
                      count.location(),
                      not_finite.location()};
  const Index tiles = ceil_div(task.size, kTakeTile);
  Scratch scratch(context);
  const Tiles above_tiles = fresh_tiles(context, scratch, tiles);
  const Tiles on_tiles = fresh_tiles(context, scratch, tiles);
  for_owed_dtype(taken.values.dtype, [&]<typename T>(T) {
    launch(context, blocks_for(context, tiles, 1), kBlock, take<T>, task, tiles, above_tiles,
           on_tiles);
  });
}

}  // namespace sparsesync::cuda
