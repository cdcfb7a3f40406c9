// CUDA bodies of compact and compact_groups: one kernel, which reads `dense` once.
//
// What the kernels are written for: 214 M elements on an H200 (132 processors, 4.3 TB/s of plain
// reading). 856 MB of f32 are 0.20 ms; the rows that are not zero add, at a density of 5.2% and
// width 1, 12 bytes each, 134 MB: 0.23 ms. 1 us at 33 KB/us must be in flight for each processor:
// its 40 warps have 2 KiB each, 80 KiB. A processor issues 111 instructions of a warp in the time
// in which 512 bytes come. Narrow rows take, by the machine code and at that density, about 45 of
// f32 and 55 of bf16 for finding them, and for splitting them among 64 groups 40 and 75 more.
#include "kernels/compact.h"

#include <cstring>

#include "kernels/cuda/found_rows.h"
#include "kernels/cuda/nonzero.h"

namespace sparsesync::cuda {
namespace {

/// What there is to do; group j's rows begin at place j * room of the result.
struct Task {
  ConstMatrix dense;
  Index row_bytes;
  Index first_row;
  std::uint64_t mask;  // nonzero_bits()
  Index* indices;
  std::byte* values;
};

// ---- Narrow rows: several fill 16 bytes. Each warp lists the values that it finds.

/// 16 bytes of rows. They stay the words that they are loaded as: of rows of two bytes each would
/// else take up a register.
template <typename Row>
struct Rows {
  static constexpr int kCount = static_cast<int>(16 / sizeof(Row));
  uint4 words{};

  __device__ unsigned word(int i) const {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
  __device__ Row row(int j) const {
    if constexpr (sizeof(Row) == 16) {
      return words;
    } else if constexpr (sizeof(Row) == 8) {
      return word(2 * j) | static_cast<Row>(word(2 * j + 1)) << 32U;
    } else if constexpr (sizeof(Row) == 4) {
      return word(j);
    } else {
      return static_cast<Row>(word(j / 2) >> (j % 2 == 0 ? 0U : 16U));
    }
  }
  __device__ bool is_nonzero(int j, std::uint64_t mask) const {
    const auto low = static_cast<unsigned>(mask);
    const auto high = static_cast<unsigned>(mask >> 32U);
    if constexpr (sizeof(Row) == 16) {
      return ((words.x | words.z) & low) != 0 || ((words.y | words.w) & high) != 0;
    } else if constexpr (sizeof(Row) == 8) {
      return ((word(2 * j) & low) | (word(2 * j + 1) & high)) != 0;
    } else if constexpr (sizeof(Row) == 4) {
      return (word(j) & low) != 0;
    } else {
      return (word(j / 2) & low & (j % 2 == 0 ? 0xFFFFU : 0xFFFF0000U)) != 0;
    }
  }
  /// Bit j is row j.
  __device__ unsigned nonzero(std::uint64_t mask) const {
    unsigned bits = 0;
    for (int j = 0; j < kCount; ++j) bits |= (is_nonzero(j, mask) ? 1U : 0U) << j;
    return bits;
  }
};

/// Where narrow rows lie. Rows do not cross multiples of 16, so that the first chunk may begin with
/// rows that are not there, as the last one may end; those are zero.
template <typename Row>
struct Grid {
  const uint4* chunks;
  Index skipped;     // rows that are not there before the first one
  Index rows;        // with those
  Index count;       // of chunks
  IndexRange whole;  // chunks all rows of which are there

  __device__ Rows<Row> load(Index chunk) const { return {__ldcs(chunks + chunk)}; }
  __device__ Rows<Row> load_part(Index chunk) const {
    if (chunk >= whole.begin && chunk < whole.end) return load(chunk);
    if (chunk >= count) return {};
    Row part[Rows<Row>::kCount] = {};
    const Index first = chunk * Rows<Row>::kCount;
    const auto* const from = reinterpret_cast<const Row*>(chunks + chunk);
    const auto begin = static_cast<int>(first < skipped ? skipped - first : 0);
    const auto end =
        static_cast<int>(rows - first < Rows<Row>::kCount ? rows - first : Rows<Row>::kCount);
    for (int j = 0; j < Rows<Row>::kCount; ++j) {
      if (j >= begin && j < end) part[j] = from[j];
    }
    Rows<Row> loaded;
    memcpy(&loaded.words, part, sizeof(loaded.words));
    return loaded;
  }
};

constexpr int kInFlight = 4;              // chunks that a thread waits for together
constexpr int kStep = kInFlight * kWarp;  // chunks of a warp
constexpr Index kStepBytes = kStep * Chunk::kBytes * kBlockWarps;

/// The rows that a tile has, in shared memory.
template <typename Row, typename Groups>
struct Lists {
  static constexpr bool kSplits = Groups::kMost > 1;
  static constexpr std::size_t kItemBytes =
      sizeof(Row) + sizeof(TileRow) + (kSplits ? sizeof(typename Groups::Number) : 0);
  static constexpr unsigned kOfWarp = 20 * 1024 / kItemBytes / kBlockWarps;
  // A place behind every fourth: threads that read four each then read from different banks.
  static constexpr int kPlaces = kStep / kInFlight * (kInFlight + 1);

  union {
    uint4 chunks[kBlockWarps][kPlaces];          // of a step; while rows are found
    std::uint16_t order[kBlockWarps * kOfWarp];  // once they are
  };
  Row values[kBlockWarps][kOfWarp];
  TileRow rows[kBlockWarps][kOfWarp];
  typename Groups::Number numbers[kBlockWarps][kSplits ? kOfWarp : 1];
  unsigned sizes[kBlockWarps];  // more than kOfWarp: not all of them are listed
};

/// The sum of the lanes' numbers up to this one's.
__device__ unsigned inclusive_sum(unsigned number) {
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const unsigned before = __shfl_up_sync(kAllLanes, number, distance);
    if (threadIdx.x % kWarp >= distance) number += before;
  }
  return number;
}

/// Finds the rows of a warp, in its share of `steps` steps of each. What neighbouring threads load
/// they hand on so that each has rows that follow each other: few have any that are not zero, and
/// they list these one by one. The next step is on its way meanwhile.
/// @param first  the first chunk of the tile
/// @return how many; where there are more than the list holds, it has not all of them
template <typename Row, typename Groups>
__device__ unsigned find_rows(const Grid<Row>& grid, std::uint64_t mask, Index first, int steps,
                              Lists<Row, Groups>& lists) {
  constexpr int kCount = Rows<Row>::kCount;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  uint4* const places = lists.chunks[warp];
  const uint4* const own = places + lane * (kInFlight + 1);
  const Index begin = first + static_cast<int>(warp) * steps * kStep;
  const bool is_whole = begin >= grid.whole.begin && begin + steps * kStep <= grid.whole.end;
  unsigned size = 0;
  Rows<Row> loaded[kInFlight];
  for (int step = -1; step < steps; ++step) {
    if (step >= 0) {
      for (int k = 0; k < kInFlight; ++k) {
        places[k * kWarp / kInFlight * (kInFlight + 1) + lane + lane / kInFlight] = loaded[k].words;
      }
      __syncwarp();
    }
    if (step + 1 < steps) {
      const Index next = begin + (step + 1) * kStep + lane;
      if (is_whole) {
        for (int k = 0; k < kInFlight; ++k) loaded[k] = grid.load(next + k * kWarp);
      } else {
        for (int k = 0; k < kInFlight; ++k) loaded[k] = grid.load_part(next + k * kWarp);
      }
    }
    if (step < 0) continue;

    unsigned nonzero = 0;
    for (int k = 0; k < kInFlight; ++k) {
      nonzero |= Rows<Row>{own[k]}.nonzero(mask) << (k * kCount);
    }
    const auto count = static_cast<unsigned>(__popc(nonzero));
    const unsigned sum = inclusive_sum(count);
    const unsigned end = size + __shfl_sync(kAllLanes, sum, kWarp - 1);
    if (end <= Lists<Row, Groups>::kOfWarp) {
      const unsigned row = (static_cast<unsigned>((static_cast<int>(warp) * steps + step) * kStep) +
                            lane * kInFlight) *
                           unsigned{kCount};
      Row* value = lists.values[warp] + size + sum - count;
      TileRow* number = lists.rows[warp] + size + sum - count;
      for (; nonzero != 0; nonzero &= nonzero - 1) {
        const int which = __ffs(static_cast<int>(nonzero)) - 1;
        *value++ = reinterpret_cast<const Row*>(own)[which];
        *number++ = static_cast<TileRow>(row + static_cast<unsigned>(which));
      }
    }
    size = end;
    __syncwarp();
  }
  return size;
}

/// Where a list is too short: goes through the rows of a warp once more, by short lists.
/// @param listed  listed(size), called by all lanes for each list
template <typename Row, typename Groups, typename Listed>
__device__ void find_again(const Grid<Row>& grid, std::uint64_t mask, Index first, int steps,
                           Lists<Row, Groups>& lists, const Listed& listed) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  Index begin = first + static_cast<int>(warp) * steps * kStep;
  const Index stop = begin + steps * kStep;
  for (; begin < stop && begin < grid.count; begin += kWarp) {
    const Rows<Row> chunk = grid.load_part(begin + lane);
    const unsigned nonzero = chunk.nonzero(mask);
    const unsigned end = inclusive_sum(static_cast<unsigned>(__popc(nonzero)));
    unsigned at = end - static_cast<unsigned>(__popc(nonzero));
    for (int j = 0; j < Rows<Row>::kCount; ++j) {
      if ((nonzero >> j & 1U) == 0) continue;
      lists.values[warp][at] = chunk.row(j);
      lists.rows[warp][at] = static_cast<TileRow>(static_cast<unsigned>(begin - first + lane) *
                                                      unsigned{Rows<Row>::kCount} +
                                                  static_cast<unsigned>(j));
      ++at;
    }
    __syncwarp();
    listed(__shfl_sync(kAllLanes, end, kWarp - 1));
    __syncwarp();
  }
}

// Bytes of shared memory: 20 K of lists (with groups 7 a row of f32: 9% of 128 KiB are listed; 5 of
// bf16: 6%), 20 K of chunks, 3 K of sums of 64 groups. Read: the matrix once; where a tile's lists
// are too short, twice, with groups thrice. Written: 8 bytes and the value of each row.
template <typename Row, typename Groups>
__global__ void __launch_bounds__(kBlock, Groups::kMost <= 64 ? 5 : 4)
    compact_narrow(Task task, Grid<Row> grid, Groups groups, TileSums sums, int steps) {
  using List = Lists<Row, Groups>;
  __shared__ Split<Groups::kMost> split;
  __shared__ List lists;
  const Index tile = split.take(sums);
  const unsigned warp = threadIdx.x / kWarp;
  const Index first = tile * (kBlockWarps * steps * kStep);
  const Index number = task.first_row + first * Rows<Row>::kCount - grid.skipped;
  TileRow* const rows = lists.rows[warp];
  typename Groups::Number* const numbers = lists.numbers[warp];

  const unsigned size = find_rows(grid, task.mask, first, steps, lists);
  lists.sizes[warp] = size;
  __syncthreads();
  bool all_listed = true;
  for (const unsigned of_one : lists.sizes) all_listed = all_listed && of_one <= List::kOfWarp;

  if (all_listed || Groups::kMost == 1) {
    if (all_listed) name_groups(groups, number, rows, size, numbers);
    count_groups(groups, numbers, size, split.next());
  } else {
    find_again(grid, task.mask, first, steps, lists, [&](unsigned listed) {
      name_groups(groups, number, rows, listed, numbers);
      count_groups(groups, numbers, listed, split.next());
    });
  }
  const unsigned all = split.settle(sums);
  const auto write = [&](TileRow row, const Row& value, unsigned group, unsigned at) {
    if (!split.fits(group, at)) return;
    const Index to = split.to(group, at);
    task.indices[to] = number + row;
    reinterpret_cast<Row*>(task.values)[to] = value;
  };
  const auto write_listed = [&](unsigned i, unsigned at, unsigned group) {
    write(rows[i], lists.values[warp][i], group, at);
  };
  if (all_listed && Groups::kMost > 1) {
    // Neighbouring threads write rows of the same group.
    place_groups(groups, numbers, size, split.next(), [&](unsigned i, unsigned at, unsigned) {
      lists.order[at] = static_cast<std::uint16_t>(warp * List::kOfWarp + i);
    });
    split.resolve(sums);
    for (unsigned at = threadIdx.x; at < all; at += kBlock) {
      const unsigned of = lists.order[at] / List::kOfWarp;
      const unsigned i = lists.order[at] % List::kOfWarp;
      write(lists.rows[of][i], lists.values[of][i], lists.numbers[of][i], at);
    }
    return;
  }
  split.resolve(sums);
  if (all_listed) {
    place_groups(groups, numbers, size, split.next(), write_listed);
  } else {
    find_again(grid, task.mask, first, steps, lists, [&](unsigned listed) {
      name_groups(groups, number, rows, listed, numbers);
      place_groups(groups, numbers, listed, split.next(), write_listed);
    });
  }
}

// ---- Rows of any width, anywhere. Those that are not zero are marked, and read once more.

/// A row of the matrix.
struct DenseRow {
  const std::byte* data;
  Index index;

  __device__ Index number() const { return index; }
  template <typename Unit>
  __device__ Unit load(Index unit) const {
    return load_unit<Unit>(data + unit * static_cast<Index>(sizeof(Unit)));
  }
};

// Bytes of shared memory: 21 K, for 64 groups 28 K. Read: the matrix once, and once more the rows
// that are not zero, from L2 in part (tiles in flight: 4 * 132 * 128 KiB = 69 MB; L2: 50 MB).
template <typename Groups>
__global__ void __launch_bounds__(kBlock, 4)
    compact_wide(Task task, Groups groups, TileSums sums, Index tile_rows, SmallDivisor row_divisor,
                 CopyPlan plan) {
  __shared__ Split<Groups::kMost> split;
  __shared__ MarkedRows<Groups> marked;
  marked.clear();
  const Index tile = split.take(sums);
  const Index first = tile * tile_rows;
  const Index left = task.dense.rows - first;
  const auto rows = static_cast<unsigned>(left < tile_rows ? left : tile_rows);
  const std::byte* const data = task.dense.data + first * task.row_bytes;
  find_nonzero(data, rows * task.row_bytes, task.mask, [&](const Chunk& chunk, Index at) {
    if (rows == 1) return marked.mark(0);
    // Tiles of several rows are short.
    int begin = at < 0 ? static_cast<int>(-at) : 0;
    const auto row_bytes = static_cast<unsigned>(task.row_bytes);
    const unsigned place = static_cast<unsigned>(static_cast<int>(at) + begin);
    unsigned row = row_divisor.divide(place);
    for (unsigned left = (row + 1) * row_bytes - place;; left = row_bytes, ++row) {
      const int end =
          left < static_cast<unsigned>(16 - begin) ? begin + static_cast<int>(left) : 16;
      if (is_nonzero(chunk, begin, end)) marked.mark(row);
      if (end == 16) break;
      begin = end;
    }
  });
  const unsigned all = marked.settle(groups, split, sums, rows, task.first_row + first);
  split.resolve(sums);
  const auto row_at = [&](TileRow row) {
    return DenseRow{data + row * task.row_bytes, task.first_row + first + row};
  };
  write_planned_rows(marked, split, all, plan, row_at, task.indices, task.values);
}

// ---- On the host.

template <typename Row, typename Groups>
void run_narrow(const Context& context, const Task& task, const Groups& groups, Index room,
                Index* counts, Index group_count) {
  constexpr Index kCount = Rows<Row>::kCount;
  const auto skipped_bytes = static_cast<Index>(address_of(task.dense.data) % 16);
  Grid<Row> grid{};
  grid.chunks = reinterpret_cast<const uint4*>(task.dense.data - skipped_bytes);
  grid.skipped = skipped_bytes / static_cast<Index>(sizeof(Row));
  grid.rows = grid.skipped + task.dense.rows;
  grid.count = ceil_div(grid.rows, kCount);
  grid.whole = {grid.skipped == 0 ? 0 : 1, grid.rows / kCount};
  // A TileRow counts the rows of 8 steps.
  const Index bytes = grid.count * Chunk::kBytes;
  const Index steps = std::min<Index>(tile_bytes_for(context, bytes, group_count) / kStepBytes, 8);
  const Index tiles = ceil_div(bytes, steps * kStepBytes);
  Scratch scratch(context);
  const TileSums sums = fresh_tile_sums(context, scratch, tiles, group_count, room, counts);
  launch(context, tiles, kBlock, compact_narrow<Row, Groups>, task, grid, groups, sums,
         static_cast<int>(steps));
}

template <typename Groups>
void run_wide(const Context& context, const Task& task, const Groups& groups, Index room,
              Index* counts, Index group_count) {
  const Index tile_bytes = tile_bytes_for(context, task.dense.bytes(), group_count);
  const Index tile_rows =
      std::clamp<Index>(tile_bytes / task.row_bytes, 1, MarkedRows<Groups>::kMost);
  const Index tiles = ceil_div(task.dense.rows, tile_rows);
  const CopyPlan plan =
      plan_copy(task.dense.data, task.values, 0, task.row_bytes, element_bytes(task.dense.dtype));
  Scratch scratch(context);
  const TileSums sums = fresh_tile_sums(context, scratch, tiles, group_count, room, counts);
  const SmallDivisor divisor(tile_rows == 1 ? 1 : task.row_bytes);
  launch(context, tiles, kBlock, compact_wide<Groups>, task, groups, sums, tile_rows, divisor,
         plan);
}

/// @param group_count  that `groups` has
template <typename Groups>
void run(const Context& context, const Task& task, const Groups& groups, Index room, Index* counts,
         Index group_count) {
  const std::uint64_t addresses = address_of(task.dense.data) | address_of(task.values);
  const auto lies_at_rows = addresses % static_cast<std::uint64_t>(task.row_bytes) == 0;
  switch (lies_at_rows ? task.row_bytes : 0) {
    case 2:
      return run_narrow<std::uint16_t>(context, task, groups, room, counts, group_count);
    case 4:
      return run_narrow<std::uint32_t>(context, task, groups, room, counts, group_count);
    case 8:
      return run_narrow<std::uint64_t>(context, task, groups, room, counts, group_count);
    case 16:
      return run_narrow<uint4>(context, task, groups, room, counts, group_count);
    default:
      return run_wide(context, task, groups, room, counts, group_count);
  }
}

/// The groups are too many for one kernel: it reads the matrix for each few of them.
template <int most, typename Arithmetic>
void run_some(const Context& context, const Task& task, const RowGroups& groups, Index room,
              std::span<Index> counts) {
  for (Index begin = 0; begin < groups.groups(); begin += most) {
    const IndexRange range{begin, std::min(begin + most, groups.groups())};
    Task part = task;
    part.indices += begin * room;
    part.values += begin * room * task.row_bytes;
    const SomeGroups<most, Arithmetic> some(groups, range);
    Index* const to = counts.data() + begin;
    if constexpr (std::is_same_v<Arithmetic, WideGroups>) {
      run_wide(context, part, some, room, to, range.size());
    } else {
      run(context, part, some, room, to, range.size());
    }
  }
}

Task task_of(ConstMatrix dense, Index first_row, std::span<Index> indices, Matrix values) {
  SPARSESYNC_EXPECT(values.rows, ==, std::ssize(indices));
  SPARSESYNC_EXPECT(values.width, ==, dense.width);
  return {dense,          dense.row_bytes(), first_row, nonzero_bits(dense.dtype, dense.data),
          indices.data(), values.data};
}

}  // namespace

void compact(const Context& context, ConstMatrix dense, Index first_row, std::span<Index> indices,
             Matrix values, Count count) {
  const Task task = task_of(dense, first_row, indices, values);
  if (dense.bytes() == 0) return clear(context, count.location(), sizeof(Index));
  run(context, task, OneGroup{}, std::ssize(indices), count.location(), 1);
}

void compact_groups(const Context& context, ConstMatrix dense, Index first_row,
                    const RowGroups& groups, std::span<Index> indices, Matrix values,
                    std::span<Index> counts) {
  const Task task = task_of(dense, first_row, indices, values);
  SPARSESYNC_EXPECT(std::ssize(counts), ==, groups.groups());
  SPARSESYNC_EXPECT(first_row, >=, Index{0});
  SPARSESYNC_EXPECT(first_row + dense.rows, <=, groups.bijection().rows());
  if (dense.bytes() == 0) return clear(context, counts.data(), counts.size_bytes());
  const Index room = std::ssize(indices) / groups.groups();
  if (!NarrowGroups::holds(groups)) {
    run_some<128, WideGroups>(context, task, groups, room, counts);
  } else if (groups.groups() <= 64) {
    run_some<64, NarrowGroups>(context, task, groups, room, counts);
  } else {
    run_some<128, NarrowGroups>(context, task, groups, room, counts);
  }
}

}  // namespace sparsesync::cuda
