// CUDA implementations of the top-k selection.
#include "kernels/topk/topk.h"

#include <algorithm>

#include "kernels/cuda/packs.h"
#include "kernels/cuda/tile_scan.h"
#include "kernels/cuda/values.h"
#include "kernels/topk/residual.h"

namespace sparsesync::cuda {
namespace {

using sparsesync::detail::kCutSample;
using Counter = unsigned long long;

__device__ Counter* counter_at(Index* number) {
  return reinterpret_cast<Counter*>(number);
}

/// State of the search for a threshold, in device memory.
struct Search {
  // Bounds from the sample: the level is in [low, high].
  std::uint32_t low = 1;
  std::uint32_t high = 0x7FFFFFFF;
  Index above = 0;  // elements above `high`
  Index near = 0;   // elements in [low, high]
  // The digits found so far, and the rank of the sought element among those with these digits.
  std::uint32_t level = 0;
  bool among_all = false;  // search all elements instead of those in [low, high]
  Index left = 0;
};

/// Sorts the sample in decreasing order, with one block.
__global__ void bracket(const float* values, Index size, Index high, Index low, Search* search) {
  __shared__ std::uint32_t sample[kCutSample];
  for (Index i = threadIdx.x; i < kCutSample; i += blockDim.x) {
    sample[i] = magnitude_of(values[sparsesync::detail::sampled_place(i, size)]);
  }
  // Bitonic sort. Lengths and distances are powers of two, so shifts replace divisions. A single
  // block runs all 78 steps, so each must be short.
  constexpr auto kSampled = static_cast<unsigned>(kCutSample);
  for (unsigned length = 2; length <= kSampled; length *= 2) {
    for (unsigned distance = length / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (unsigned i = threadIdx.x; i < kSampled / 2; i += blockDim.x) {
        const unsigned within = i & (distance - 1);
        const unsigned first = 2 * (i - within) + within;
        const unsigned second = first + distance;
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

/// Counts the elements above and inside the bounds. Stores the magnitudes of those inside, in any
/// order, up to the capacity. Each warp collects magnitudes in shared memory, so that one atomic
/// operation reserves the space for many.
template <typename Elements>
__global__ void collect_near(const std::byte* values, Index size, std::uint32_t* near, Index room,
                             Search* search) {
  // Elements that a warp processes before it checks whether its list is full.
  constexpr unsigned kStep = kWarp * Elements::kCount;
  constexpr unsigned kCollected = 2 * kStep;
  __shared__ std::uint32_t collected_by[kBlock / kWarp][kCollected];
  __shared__ unsigned count_of[kBlock / kWarp];
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t* const collected = collected_by[threadIdx.x / kWarp];
  unsigned& count = count_of[threadIdx.x / kWarp];
  if (lane == 0) count = 0;
  __syncwarp();
  const auto store_collected = [&] {
    Index first = 0;
    if (lane == 0) first = static_cast<Index>(atomicAdd(counter_at(&search->near), Counter{count}));
    first = __shfl_sync(kAllLanes, first, 0);
    for (unsigned i = lane; i < count; i += kWarp) {
      if (first + i < room) near[first + i] = collected[i];
    }
    __syncwarp();
    if (lane == 0) count = 0;
    __syncwarp();
  };
  const std::uint32_t low = search->low;
  const std::uint32_t high = search->high;
  Index above = 0;
  Elements::for_each(size, [&](const auto& elements) {
    constexpr int kCount = std::remove_cvref_t<decltype(elements)>::kCount;
    float loaded[kCount];
    elements.load(values, loaded);
    for (const float value : loaded) {
      const std::uint32_t magnitude = magnitude_of(value);
      if (magnitude > high) {
        ++above;
      } else if (magnitude >= low) {
        collected[atomicAdd(&count, 1U)] = magnitude;
      }
    }
    // Single elements come from the last partial tile. A warp has at most kStep of them, for which
    // there is always capacity.
    if constexpr (kCount > 1) {
      __syncwarp();
      // No lane collects more before all lanes have read the count.
      if (__any_sync(kAllLanes, count > kCollected - kStep ? 1 : 0) != 0) store_collected();
    }
  });
  __syncwarp();
  if (count > 0) store_collected();
  block_add(above, &search->above);
}

constexpr unsigned kDigit = 8;
constexpr int kDigits = 1 << kDigit;

/// Counts the next digit of the elements that have the known digits.
template <typename Elements>
__global__ void count_digits(const std::byte* values, Index size, const std::byte* near,
                             const Search* search, unsigned shift, Index* histogram) {
  static_assert(kDigits == kBlock);
  __shared__ unsigned own[kDigits];
  own[threadIdx.x] = 0;
  __syncthreads();
  const bool among_all = search->among_all;
  const std::uint32_t level = search->level;
  // A magnitude is also a valid f32, without sign.
  const std::byte* const from = among_all ? values : near;
  Elements::for_each(among_all ? size : search->near, [&](const auto& elements) {
    float loaded[std::remove_cvref_t<decltype(elements)>::kCount];
    elements.load(from, loaded);
    for (const float value : loaded) {
      const std::uint32_t magnitude = magnitude_of(value);
      const unsigned above = shift + kDigit;
      if (std::uint64_t{magnitude} >> above != std::uint64_t{level} >> above) continue;
      atomicAdd(&own[magnitude >> shift & (kDigits - 1)], 1U);
    }
  });
  __syncthreads();
  if (own[threadIdx.x] != 0) {
    atomicAdd(counter_at(&histogram[threadIdx.x]), Counter{own[threadIdx.x]});
  }
}

/// Chooses the next digit of the level, from the largest digit downwards, and clears the histogram.
/// Runs in one block, with one thread per digit.
__global__ void choose_digit(Index* histogram, unsigned shift, Search* search) {
  static_assert(kDigits == kBlock);
  __shared__ Index sums[kWarp + 1];
  const unsigned digit = kDigits - 1 - threadIdx.x;
  const Index count = histogram[digit];
  const Index left = search->left;
  histogram[digit] = 0;
  Index all = 0;
  const Index above = block_exclusive_sum(count, sums, &all);
  if (above < left && (left <= above + count || digit == 0)) {
    search->left = left - above;
    search->level |= digit << shift;
  }
}

/// Counts the elements above the level of a threshold, and on it.
template <typename Elements>
__global__ void count_about(const std::byte* values, Index size, const MagnitudeCut* cut,
                            Index* counts) {
  const std::uint32_t level = cut->level;
  Index above = 0;
  Index on = 0;
  Elements::for_each(size, [&](const auto& elements) {
    float loaded[std::remove_cvref_t<decltype(elements)>::kCount];
    elements.load(values, loaded);
    for (const float value : loaded) {
      const std::uint32_t magnitude = magnitude_of(value);
      above += magnitude > level ? 1 : 0;
      on += magnitude == level && magnitude != 0 ? 1 : 0;
    }
  });
  block_add(above, counts);
  block_add(on, counts + 1);
}

/// Largest number of elements per thread. The 32-bit counters of a block then cannot overflow.
constexpr Index kMostOfThread = Index{1} << 23;

void find(const Context& context, std::span<const float> values, Index k, MagnitudeCut* cut,
          std::span<std::uint32_t> near) {
  const auto size = std::ssize(values);
  const float* const from = values.data();
  const Index room = std::ssize(near);
  Scratch scratch(context);
  Search* const search = scratch.allocate<Search>(1).data();
  const std::span<Index> histogram = scratch.allocate<Index>(kDigits);
  Index* const digits = histogram.data();
  for_each(context, 1, [=] __device__(Index) { *search = Search{}; });
  if (sparsesync::detail::is_sampled(size)) {
    const auto [high, low] = sparsesync::detail::sample_ranks(k, size);
    launch<bracket>(context, 1, 1024, from, size, high, low, search);
  }
  const std::byte* const bytes = std::as_bytes(values).data();
  const std::byte* const near_bytes = std::as_bytes(near).data();
  const std::uint64_t addresses = address_of(bytes) | address_of(near_bytes);
  for_elements<float>(addresses, [&]<typename Elements>(Elements) {
    launch<collect_near<Elements>>(context, blocks_for(context, size), kBlock, bytes, size,
                                   near.data(), room, search);
  });
  for_each(context, 1, [=] __device__(Index) {
    const bool is_near =
        search->above < k && k <= search->above + search->near && search->near <= room;
    search->among_all = !is_near;
    search->left = is_near ? k - search->above : k;
  });
  const Index blocks = std::max(blocks_for(context, size), ceil_div(size, kMostOfThread * kBlock));
  clear(context, digits, histogram.size_bytes());
  for (unsigned shift = 24;; shift -= kDigit) {
    for_elements<float>(addresses, [&]<typename Elements>(Elements) {
      launch<count_digits<Elements>>(context, blocks, kBlock, bytes, size, near_bytes, search,
                                     shift, digits);
    });
    launch<choose_digit>(context, 1, kBlock, digits, shift, search);
    if (shift == 0) break;
  }
  for_each(context, 1, [=] __device__(Index) {
    // Zeros are never selected: level 0 selects all nonzero elements.
    *cut = search->level == 0 ? MagnitudeCut{} : MagnitudeCut{search->level, search->left};
  });
}

/// Elements per thread in a tile of extract_tiles(). Tiles of 8 KiB were limited by look-back to
/// 0.7 TB/s on an H200.
constexpr int kItems = 32;
constexpr Index kTakeTile = Index{kItems} * kBlock;
static_assert(kItems == kWarp, "a ballot has the marks of one lane");

/// The arguments of extract_tiles().
struct TakeTask {
  float* residual;
  IndexRange range;  // elements that the launch examines
  float* velocity;   // null: not changed
  const MagnitudeCut* cut;
  Index* indices;
  std::byte* values;
  float* velocities;
  Index room;
  Index* count;
  Index* not_finite;
  // Elements above the level and on it, before the range; null: none.
  const Index* before;
  // Receives the same counts, up to the end of the range.
  Index* up_to_end;
};

// Two counts in one number, so that one prefix sum covers both. A word of Tiles has 62 bits for
// them.
constexpr int kLaunchBits = 31;
static_assert(kMostTakenAtOnce < Index{1} << kLaunchBits);
constexpr unsigned kTileBits = 16;
static_assert(kTakeTile < Index{1} << kTileBits);

template <typename T>
__device__ void take_one(const TakeTask& task, Index element, Index place) {
  if (place >= task.room) return;
  sparsesync::detail::OwedElement owed{task.residual[element], 0};
  T value{};
  if (!owed.extract(&value)) atomicAdd(counter_at(task.not_finite), Counter{1});
  task.residual[element] = owed.residual;
  task.indices[place] = element;
  store(task.values, place, value);
  if (task.velocity == nullptr) return;
  task.velocities[place] = task.velocity[element];
  task.velocity[element] = 0;
}

/// Masks of 32 consecutive elements: bit i is the i-th element.
struct Marks {
  unsigned above;  // above the level of the threshold
  unsigned on;     // on the level, and nonzero
};

/// Compares 32 times 32 elements of a warp with a level. A lane loads every 32nd element and
/// returns the marks of 32 consecutive ones.
template <bool is_whole>
__device__ Marks compare(const float* values, Index count, std::uint32_t level) {
  constexpr int kInFlight = 8;  // loads in flight per lane
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::uint32_t lowest = level > 1 ? level : 1;
  unsigned above = 0;
  unsigned reached = 0;
  for (int first = 0; first < kItems; first += kInFlight) {
    std::uint32_t magnitudes[kInFlight];
    for (int k = 0; k < kInFlight; ++k) {
      const Index element = lane + (first + k) * kWarp;
      magnitudes[k] = is_whole || element < count ? magnitude_of(values[element]) : 0;
    }
    for (int k = 0; k < kInFlight; ++k) {
      const unsigned all_above = __ballot_sync(kAllLanes, magnitudes[k] > level ? 1 : 0);
      const unsigned all_reached = __ballot_sync(kAllLanes, magnitudes[k] >= lowest ? 1 : 0);
      if (lane == first + k) {
        above = all_above;
        reached = all_reached;
      }
    }
  }
  return {above, reached & ~above};
}

/// Works like select() of kernels/cuda/select.h, with two counts: elements above the level and on
/// it.
template <typename T>
__global__ void extract_tiles(TakeTask task, Index tile_count, Tiles tiles) {
  __shared__ Index shared;
  __shared__ unsigned sums[kWarp + 1];
  const std::uint32_t level = task.cut->level;
  const Index ties = task.cut->ties;
  const Index above_before = task.before == nullptr ? 0 : task.before[0];
  const Index on_before = task.before == nullptr ? 0 : task.before[1];
  // Offsets in a tile of the elements that a warp examines, and of those that a lane extracts.
  const Index of_warp = static_cast<Index>(threadIdx.x / kWarp) * kItems * kWarp;
  const Index of_lane = of_warp + static_cast<Index>(threadIdx.x % kWarp) * kItems;
  for (Index tile = tiles.next_tile(&shared); tile < tile_count; tile = tiles.next_tile(&shared)) {
    const Index first = task.range.begin + tile * kTakeTile;
    const Index left = task.range.end - first - of_warp;
    const float* const values = task.residual + first + of_warp;
    const Marks marks = left >= kItems * kWarp ? compare<true>(values, left, level)
                                               : compare<false>(values, left, level);
    unsigned here = 0;
    const unsigned of_thread =
        block_exclusive_sum(static_cast<unsigned>(__popc(marks.above)) |
                                static_cast<unsigned>(__popc(marks.on)) << kTileBits,
                            sums, &here);
    const auto above_in = [](unsigned both) {
      return static_cast<Index>(both & low_mask(kTileBits));
    };
    const auto on_in = [](unsigned both) { return static_cast<Index>(both >> kTileBits); };
    const Index of_tile = tiles.before(tile, on_in(here) << kLaunchBits | above_in(here), &shared);
    const Index above_tile = above_before + (of_tile & static_cast<Index>(low_mask(kLaunchBits)));
    const Index on_tile = on_before + (of_tile >> kLaunchBits);
    Index above = above_tile + above_in(of_thread);
    Index on = on_tile + on_in(of_thread);
    // After the last selected tie, elements on the level are skipped, and their count no longer
    // matters.
    unsigned which = marks.above | (on < ties ? marks.on : 0);
    for (; which != 0; which &= which - 1) {
      const int bit = __ffs(static_cast<int>(which)) - 1;
      const bool is_on = (marks.on >> static_cast<unsigned>(bit) & 1U) != 0;
      if (!is_on || on < ties) {
        take_one<T>(task, first + of_lane + bit, above + (on < ties ? on : ties));
      }
      above += is_on ? 0 : 1;
      on += is_on ? 1 : 0;
    }
    if (tile == tile_count - 1 && threadIdx.x == 0) {
      const Index all_above = above_tile + above_in(here);
      const Index all_on = on_tile + on_in(here);
      task.up_to_end[0] = all_above;
      task.up_to_end[1] = all_on;
      *task.count = all_above + (all_on < ties ? all_on : ties);
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
  const auto size = std::ssize(values);
  const std::byte* const bytes = std::as_bytes(values).data();
  Scratch scratch(context);
  const std::span<Index> counts = scratch.allocate<Index>(2);
  Index* const above = counts.data();
  clear(context, above, counts.size_bytes());
  for_elements<float>(address_of(bytes), [&]<typename Elements>(Elements) {
    launch<count_about<Elements>>(context, blocks_for(context, size), kBlock, bytes, size, cut,
                                  above);
  });
  Index* const to = count.location();
  for_each(context, 1, [=] __device__(Index) {
    *to = above[0] + (above[1] < cut->ties ? above[1] : cut->ties);
  });
}

void take_largest_in_parts(const Context& context, std::span<float> residual,
                           std::span<float> velocity, const MagnitudeCut* cut, const Taken& taken,
                           Count count, Count not_finite, Index most) {
  sparsesync::detail::expect_places(residual, velocity, taken);
  if (residual.empty()) return clear(context, count.location(), sizeof(Index));
  const auto size = std::ssize(residual);
  const bool has_velocity = !taken.velocities.empty();
  Scratch scratch(context);
  Index* up_to_end = scratch.allocate<Index>(2 * ceil_div(size, most)).data();
  TakeTask task{residual.data(),
                {},
                has_velocity ? velocity.data() : nullptr,
                cut,
                taken.indices.data(),
                taken.values.data,
                taken.velocities.data(),
                std::ssize(taken.indices),
                count.location(),
                not_finite.location(),
                nullptr,
                nullptr};
  for (Index begin = 0; begin < size; begin += most) {
    task.range = {begin, std::min(begin + most, size)};
    task.up_to_end = up_to_end;
    const Index tiles = ceil_div(task.range.size(), kTakeTile);
    const Tiles fresh = fresh_tiles(context, scratch, tiles);
    for_owed_dtype(taken.values.dtype, [&]<typename T>(T) {
      launch<extract_tiles<T>>(context, blocks_for(context, tiles, 1), kBlock, task, tiles, fresh);
    });
    task.before = up_to_end;
    up_to_end += 2;
  }
}

void take_largest(const Context& context, std::span<float> residual, std::span<float> velocity,
                  const MagnitudeCut* cut, const Taken& taken, Count count, Count not_finite) {
  take_largest_in_parts(context, residual, velocity, cut, taken, count, not_finite,
                        kMostTakenAtOnce);
}

}  // namespace sparsesync::cuda
