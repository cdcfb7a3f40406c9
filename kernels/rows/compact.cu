// CUDA implementations of compact() and compact_groups(): one kernel, which reads `dense` once.
//
// Design point: 214 M elements on an H200 (132 multiprocessors, 4.3 TB/s for plain reads). 856 MB
// of f32 take 0.20 ms. At a density of 5.2% and width 1, the nonzero rows add 12 bytes each, 134 MB
// in total: 0.23 ms.
//
// Loads in flight: a latency of 1 us at 33 KB/us needs 33 KB per multiprocessor. Its 40 warps have
// 2 KiB each, 80 KiB in total. With groups, 32 warps with more registers are 5% faster.
//
// Instructions: while 512 bytes arrive, a multiprocessor issues 111 warp instructions. According to
// the machine code, finding narrow rows at that density takes about 36 of them (f32) or 48 (bf16).
// Splitting them among 64 groups takes 34 or 68 more.
#include "kernels/rows/compact.h"

#include <cstring>

#include "kernels/cuda/found_rows.h"
#include "kernels/cuda/nonzero.h"

namespace sparsesync::cuda {
namespace {

/// Arguments of the kernels. The rows of group j start at output position j * room.
struct Task {
  ConstMatrix dense;
  Index row_bytes;
  Index first_row;
  std::uint64_t mask;  // nonzero_bits()
  Index* indices;
  std::byte* values;
};

// ---- Narrow rows: several rows fit into 16 bytes. Each warp lists the values that it finds.

/// A chunk of 16 bytes with several rows. Rows stay in the words as loaded, because otherwise each
/// 2-byte row would occupy a register.
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
  /// Returns a mask of the nonzero rows: bit j is row j.
  __device__ unsigned nonzero(std::uint64_t mask) const {
    unsigned bits = 0;
    for (int j = 0; j < kCount; ++j) bits |= (is_nonzero(j, mask) ? 1U : 0U) << j;
    return bits;
  }
};

/// The chunks of a matrix with narrow rows. Rows do not straddle chunk boundaries. The first and
/// the last chunk may thus contain positions outside the matrix; they count as zero rows.
template <typename Row>
struct Grid {
  const uint4* chunks;
  Index skipped;     // positions before the first row
  Index rows;        // number of rows, including the skipped positions
  Index count;       // number of chunks
  IndexRange whole;  // chunks that lie completely in the matrix

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

constexpr int kInFlight = 4;              // loads in flight per thread, in chunks
constexpr int kStep = kInFlight * kWarp;  // chunks per warp
constexpr Index kStepBytes = kStep * Chunk::kBytes * kBlockWarps;

/// The rows that the warps of a tile find, in shared memory.
template <typename Row, typename Groups>
struct Lists {
  static constexpr bool kSplits = Groups::kMost > 1;
  static constexpr std::size_t kItemBytes =
      sizeof(Row) + sizeof(TileRow) + (kSplits ? sizeof(typename Groups::Number) : 0);
  static constexpr unsigned kCapacity = 20 * 1024 / kItemBytes / kBlockWarps;
  static constexpr unsigned kStepRows = kStep * Rows<Row>::kCount;
  // A gap after every fourth chunk. Threads that read four chunks each then access different banks.
  static constexpr int kPlaces = kStep / kInFlight * (kInFlight + 1);

  /// The first rows of a warp.
  struct List {
    Row values[kCapacity];
    TileRow rows[kCapacity];
    typename Groups::Number numbers[kSplits ? kCapacity : 1];
  };

  union {
    uint4 chunks[kBlockWarps][kPlaces];  // chunks of a step
    // Rows of a step that are counted but not listed.
    TileRow counted[kBlockWarps][kPlaces * sizeof(uint4) / sizeof(TileRow)];
    // Order of all listed rows. Written after all rows are listed.
    std::uint16_t order[kBlockWarps * kCapacity];
  };
  union {
    List list;
    TileRow step_rows[kStepRows];  // rows of a step that is read again; replaces the list
  } warps[kBlockWarps];
  unsigned sizes[kBlockWarps];  // rows per warp; if above kCapacity, the list is incomplete
  static_assert(kStepRows <= kPlaces * sizeof(uint4) / sizeof(TileRow));

  __device__ List& list(unsigned warp) { return warps[warp].list; }
};

/// The rows of a warp in its share of a tile.
struct Found {
  unsigned size;    // number of rows
  unsigned listed;  // number of listed rows; equal to `size` if all fit
  // Chunks with rows that are not listed. Bit kInFlight * s + k stands for the k-th chunk that this
  // lane examines in step s.
  unsigned unlisted;
};
constexpr Index kMostSteps = 32 / kInFlight;

/// Returns the inclusive prefix sum over the lanes of a warp.
__device__ unsigned inclusive_sum(unsigned number) {
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
#if defined(__CUDA_ARCH__)
    // The shuffle's predicate reports whether the source lane exists, which saves 2 of 4
    // instructions.
    asm volatile(
        "{ .reg .u32 before; .reg .pred valid;"
        "  shfl.sync.up.b32 before|valid, %0, %1, 0, 0xffffffff;"
        "  @valid add.u32 %0, %0, before; }"
        : "+r"(number)
        : "r"(distance));
#else
    const unsigned before = __shfl_up_sync(kAllLanes, number, distance);
    if (threadIdx.x % kWarp >= distance) number += before;
#endif
  }
  return number;
}

/// Stores the chunks of a step to shared memory. Each lane has loaded every kWarp-th chunk.
template <typename Row>
__device__ void store_step(const Rows<Row> (&loaded)[kInFlight], uint4* places) {
  const unsigned lane = threadIdx.x % kWarp;
  for (int k = 0; k < kInFlight; ++k) {
    places[k * kWarp / kInFlight * (kInFlight + 1) + lane + lane / kInFlight] = loaded[k].words;
  }
}

/// Returns the nonzero rows among a lane's kInFlight neighbouring chunks: bit i is row i.
template <typename Row>
__device__ unsigned nonzero_of_step(const uint4* own, std::uint64_t mask) {
  unsigned nonzero = 0;
  for (int k = 0; k < kInFlight; ++k) {
    nonzero |= Rows<Row>{own[k]}.nonzero(mask) << (k * Rows<Row>::kCount);
  }
  return nonzero;
}

/// Finds the rows of a warp in its share of `steps` steps. Lanes exchange the chunks that they
/// load, so that each lane examines consecutive rows. Few rows are nonzero, and the lane lists them
/// one by one. The next step is loaded meanwhile.
///
/// If the list cannot hold the rows of a step, it ends before that step. Later rows are only
/// counted, with one bit per chunk.
/// @param first    first chunk of the tile
/// @param counted  counted(rows, size): called by all lanes for the rows of a step that is not
///                 listed
template <bool kIsWhole, typename Row, typename Groups, typename Counted>
__device__ Found find_rows(const Grid<Row>& grid, std::uint64_t mask, Index first, int steps,
                           Lists<Row, Groups>& lists, const Counted& counted) {
  constexpr int kCount = Rows<Row>::kCount;
  constexpr unsigned kCapacity = Lists<Row, Groups>::kCapacity;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  uint4* const places = lists.chunks[warp];
  const uint4* const own = places + lane * (kInFlight + 1);
  const Index begin = first + static_cast<int>(warp) * steps * kStep;
  Found found{};
  Rows<Row> loaded[kInFlight];
  const auto load = [&](int step) {
    for (int k = 0; k < kInFlight; ++k) {
      const Index chunk = begin + lane + step * kStep + k * kWarp;
      loaded[k] = kIsWhole ? grid.load(chunk) : grid.load_part(chunk);
    }
  };
  load(0);
  for (int step = 0; step < steps; ++step) {
    store_step(loaded, places);
    __syncwarp();
    if (step + 1 < steps) load(step + 1);

    unsigned nonzero = nonzero_of_step<Row>(own, mask);
    const auto count = static_cast<unsigned>(__popc(nonzero));
    const unsigned sum = inclusive_sum(count);
    const unsigned of_step = __shfl_sync(kAllLanes, sum, kWarp - 1);
    const unsigned row = (static_cast<unsigned>((static_cast<int>(warp) * steps + step) * kStep) +
                          lane * kInFlight) *
                         unsigned{kCount};
    if (found.size + of_step <= kCapacity) {
      Row* value = lists.list(warp).values + found.size + sum - count;
      TileRow* number = lists.list(warp).rows + found.size + sum - count;
      for (; nonzero != 0; nonzero &= nonzero - 1) {
        const int which = __ffs(static_cast<int>(nonzero)) - 1;
        *value++ = reinterpret_cast<const Row*>(own)[which];
        *number++ = static_cast<TileRow>(row + static_cast<unsigned>(which));
      }
    } else if (of_step > 0) {
      if (found.size <= kCapacity) found.listed = found.size;
      for (int k = 0; k < kInFlight; ++k) {
        const auto of_chunk = nonzero >> (k * kCount) & static_cast<unsigned>(low_mask(kCount));
        found.unlisted |= (of_chunk != 0 ? 1U : 0U) << (step * kInFlight + k);
      }
      if constexpr (Groups::kMost > 1) {
        __syncwarp();  // every lane has read its chunks
        TileRow* const rows = lists.counted[warp];
        TileRow* number = rows + sum - count;
        for (; nonzero != 0; nonzero &= nonzero - 1) {
          const int which = __ffs(static_cast<int>(nonzero)) - 1;
          *number++ = static_cast<TileRow>(row + static_cast<unsigned>(which));
        }
        __syncwarp();
        counted(rows, of_step);
      }
    }
    found.size += of_step;
    __syncwarp();
  }
  if (found.size <= kCapacity) found.listed = found.size;
  return found;
}

/// Reads the chunks again that contain unlisted rows.
/// @param listed  listed(rows, size, value_of): called by all lanes for each step; value_of(row) is
///                the value of a row of the step
template <typename Row, typename Groups, typename Listed>
__device__ void find_again(const Grid<Row>& grid, std::uint64_t mask, Index first, int steps,
                           unsigned unlisted, Lists<Row, Groups>& lists, const Listed& listed) {
  constexpr unsigned kCount = Rows<Row>::kCount;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  uint4* const places = lists.chunks[warp];
  const uint4* const own = places + lane * (kInFlight + 1);
  TileRow* const rows = lists.warps[warp].step_rows;
  for (int step = 0; step < steps; ++step) {
    const unsigned of_step =
        unlisted >> (step * kInFlight) & static_cast<unsigned>(low_mask(kInFlight));
    if (__any_sync(kAllLanes, of_step != 0 ? 1 : 0) == 0) continue;
    const auto begin = static_cast<unsigned>((static_cast<int>(warp) * steps + step) * kStep);
    Rows<Row> loaded[kInFlight];
    for (unsigned k = 0; k < kInFlight; ++k) {
      const unsigned chunk = k * kWarp + lane;
      const unsigned bits = __shfl_sync(kAllLanes, of_step, static_cast<int>(chunk / kInFlight));
      if ((bits >> chunk % kInFlight & 1U) != 0) loaded[k] = grid.load_part(first + begin + chunk);
    }
    store_step(loaded, places);
    __syncwarp();
    unsigned nonzero = nonzero_of_step<Row>(own, mask);
    const auto count = static_cast<unsigned>(__popc(nonzero));
    const unsigned sum = inclusive_sum(count);
    TileRow* number = rows + sum - count;
    for (; nonzero != 0; nonzero &= nonzero - 1) {
      const auto which = static_cast<unsigned>(__ffs(static_cast<int>(nonzero)) - 1);
      *number++ = static_cast<TileRow>((begin + lane * kInFlight) * kCount + which);
    }
    __syncwarp();
    listed(rows, __shfl_sync(kAllLanes, sum, kWarp - 1), [&](TileRow row) {
      const unsigned i = row - begin * kCount;
      const unsigned lane_of_row = i / (kCount * kInFlight);
      return reinterpret_cast<const Row*>(places + lane_of_row)[i];
    });
    __syncwarp();
  }
}

// Shared memory: 20 KiB for lists, 20 KiB for chunks, and 3 KiB for the sums of 64 groups. With
// groups, a listed row takes 7 bytes (f32) or 5 bytes (bf16). The lists hold 9% or 6% of the rows
// of 128 KiB.
//
// Bytes read: the matrix once, and chunks with unlisted rows a second time, partly from the L2
// cache. The average second reads for a tile of 128 KiB with 5.2% nonzero rows were computed.
// Uniformly distributed rows need none. Runs of 64 rows need 0.5 KiB (f32) or 0.6 KiB (bf16). Runs
// of 512 rows need 6.7 KiB or 2.2 KiB.
//
// Bytes written: 8 and the value, per row.
template <typename Row, typename Groups>
__global__ void __launch_bounds__(kBlock, Groups::kMost == 1 ? resident_blocks(5) : 4)
    compact_narrow(Task task, Grid<Row> grid, Groups groups, TileSums sums, int steps) {
  constexpr unsigned kCapacity = Lists<Row, Groups>::kCapacity;
  __shared__ Split<Groups::kMost> split;
  __shared__ Lists<Row, Groups> lists;
  const Index tile = split.next_tile(sums);
  const unsigned warp = threadIdx.x / kWarp;
  const Index first = tile * (kBlockWarps * steps * kStep);
  const Index number = task.first_row + first * Rows<Row>::kCount - grid.skipped;
  auto& list = lists.list(warp);

  const auto counted = [&](const TileRow* rows, unsigned size) {
    count_groups(
        groups, [&](unsigned i) { return groups.of(number + rows[i]); }, size, split.next());
  };
  const bool is_whole =
      first >= grid.whole.begin && first + kBlockWarps * steps * kStep <= grid.whole.end;
  const Found found = is_whole ? find_rows<true>(grid, task.mask, first, steps, lists, counted)
                               : find_rows<false>(grid, task.mask, first, steps, lists, counted);
  lists.sizes[warp] = found.size;
  __syncthreads();
  bool all_listed = true;
  for (const unsigned size : lists.sizes) all_listed = all_listed && size <= kCapacity;

  // Without groups, nothing has been counted yet.
  name_and_count_groups(groups, number, list.rows, Groups::kMost == 1 ? found.size : found.listed,
                        list.numbers, split.next());
  const unsigned all = split.scan_counts(sums);
  const auto group_of = [&](unsigned i) -> unsigned { return list.numbers[i]; };
  const auto write = [&](TileRow row, const Row& value, unsigned group, unsigned at) {
    if (!split.fits(group, at)) return;
    const Index to = split.to(group, at);
    task.indices[to] = number + row;
    reinterpret_cast<Row*>(task.values)[to] = value;
  };
  if (all_listed && Groups::kMost > 1) {
    // Neighbouring threads write rows of the same group.
    place_groups(groups, group_of, found.listed, split.next(),
                 [&](unsigned i, unsigned at, unsigned) {
                   lists.order[at] = static_cast<std::uint16_t>(warp * kCapacity + i);
                 });
    split.resolve(sums);
    for (unsigned at = threadIdx.x; at < all; at += kBlock) {
      const auto& of = lists.list(lists.order[at] / kCapacity);
      const unsigned i = lists.order[at] % kCapacity;
      write(of.rows[i], of.values[i], of.numbers[i], at);
    }
    return;
  }
  split.resolve(sums);
  place_groups(groups, group_of, found.listed, split.next(),
               [&](unsigned i, unsigned at, unsigned group) {
                 write(list.rows[i], list.values[i], group, at);
               });
  if (found.size <= kCapacity) return;
  __syncwarp();  // the rows of a step replace the list
  find_again(grid, task.mask, first, steps, found.unlisted, lists,
             [&](const TileRow* rows, unsigned size, const auto& value_of) {
               place_groups(
                   groups, [&](unsigned i) { return groups.of(number + rows[i]); }, size,
                   split.next(),
                   [&](unsigned i, unsigned at, unsigned group) {
                     write(rows[i], value_of(rows[i]), group, at);
                   });
             });
}

// ---- Rows of any width and alignment. Nonzero rows are marked, and read a second time.

/// A row of the dense matrix.
struct DenseRow {
  const std::byte* data;
  Index index;

  __device__ Index number() const { return index; }
  template <typename Unit>
  __device__ Unit load(Index unit) const {
    return load_unit<Unit>(data + unit * static_cast<Index>(sizeof(Unit)));
  }
};

// Shared memory: 21 KiB, or 28 KiB for 64 groups. Bytes read: the matrix once, and nonzero rows a
// second time, partly from L2 (tiles in flight: 4 * 132 * 128 KiB = 69 MB; L2: 50 MB).
template <typename Groups>
__global__ void __launch_bounds__(kBlock, 4)
    compact_wide(Task task, Groups groups, TileSums sums, Index tile_rows, SmallDivisor row_divisor,
                 CopyPlan plan) {
  __shared__ Split<Groups::kMost> split;
  __shared__ MarkedRows<Groups> marked;
  marked.clear();
  const Index tile = split.next_tile(sums);
  const Index first = tile * tile_rows;
  const Index left = task.dense.rows - first;
  const auto rows = static_cast<unsigned>(left < tile_rows ? left : tile_rows);
  const std::byte* const data = task.dense.data + first * task.row_bytes;
  find_nonzero(data, rows * task.row_bytes, task.mask, [&](const Chunk& chunk, Index at) {
    if (rows == 1) return marked.mark(0);
    // Tiles of several rows are short, so these offsets fit into 32 bits.
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
  const unsigned all = marked.scan_counts(groups, split, sums, rows, task.first_row + first);
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
  // A TileRow must hold the row number within 8 steps.
  const Index bytes = grid.count * Chunk::kBytes;
  const Index steps =
      std::min<Index>(tile_bytes_for(context, bytes, group_count) / kStepBytes, kMostSteps);
  const Index tiles = ceil_div(bytes, steps * kStepBytes);
  Scratch scratch(context);
  const TileSums sums = fresh_tile_sums(context, scratch, tiles, group_count, room, counts);
  launch<compact_narrow<Row, Groups>>(context, tiles, kBlock, task, grid, groups, sums,
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
  launch<compact_wide<Groups>>(context, tiles, kBlock, task, groups, sums, tile_rows, divisor,
                               plan);
}

/// Runs the kernel for narrow rows if rows are aligned to their size, otherwise that for any rows.
/// @param group_count  number of groups in `groups`
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

/// Runs several launches, because one kernel handles at most `most` groups. Each launch reads the
/// matrix.
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
