// CUDA bodies of compact and compact_groups: one kernel, which reads `dense` once.
//
// What the kernels are written for: 214 M elements on an H200 (132 processors, 4.3 TB/s of plain
// reading). 856 MB of f32 are 0.20 ms; the rows that are not zero add, at a density of 5.2% and
// width 1, 12 bytes each, 134 MB: 0.23 ms. 1 us at 33 KB/us must be in flight for each processor: 5
// blocks have 8 warps each, and these 2 KiB each: 80 KiB. A processor issues 111 instructions of a
// warp in the time in which 512 bytes come: narrow rows take about 45 of them in f32 and 75 in
// bf16.
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
  __device__ unsigned count_nonzero(std::uint64_t mask) const {
    unsigned count = 0;
    for (int j = 0; j < kCount; ++j) count += is_nonzero(j, mask) ? 1 : 0;
    return count;
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
      sizeof(Row) + sizeof(TileRow) +
      (kSplits ? sizeof(std::uint16_t) + sizeof(typename Groups::Number) : 0);
  static constexpr unsigned kOfWarp = (std::size_t{1} << 15) / kItemBytes / kBlockWarps;

  Row values[kBlockWarps][kOfWarp];
  TileRow rows[kBlockWarps][kOfWarp];
  std::uint16_t order[kSplits ? kBlockWarps * kOfWarp : 1];
  typename Groups::Number numbers[kBlockWarps][kSplits ? kOfWarp : 1];
  unsigned sizes[kBlockWarps];  // more than kOfWarp: not all of them are listed
};

/// What the threads of a warp count, several numbers in one word.
template <typename Row>
class Packed {
 public:
  // All rows of 32 chunks must fit.
  static constexpr unsigned kBits = Rows<Row>::kCount == 8 ? 16 : 8;
  using Word = std::conditional_t<kBits == 16, unsigned long long, unsigned>;
  static_assert(sizeof(Word) * 8 == kInFlight * kBits);

  __device__ void add(int which, unsigned count) {
    word_ += static_cast<Word>(count) << (kBits * static_cast<unsigned>(which));
  }
  __device__ unsigned operator[](int which) const {
    return static_cast<unsigned>(word_ >> (kBits * static_cast<unsigned>(which))) &
           ((1U << kBits) - 1);
  }
  /// Becomes what the lanes before this one have.
  /// @return what all have
  __device__ Packed sum_up() {
    const unsigned lane = threadIdx.x % kWarp;
    Word sum = word_;
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
      const Word before = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += before;
    }
    word_ = sum - word_;
    Packed all;
    all.word_ = __shfl_sync(kAllLanes, sum, kWarp - 1);
    return all;
  }

 private:
  Word word_ = 0;
};

/// Lists the rows of a chunk that are not zero.
/// @param at   where the first one goes
/// @param row  of the tile, the first one of the chunk
template <typename Row>
__device__ void append(const Rows<Row>& chunk, std::uint64_t mask, unsigned row, unsigned at,
                       Row* values, TileRow* rows) {
  for (int j = 0; j < Rows<Row>::kCount; ++j) {
    if (!chunk.is_nonzero(j, mask)) continue;
    values[at] = chunk.row(j);
    rows[at] = static_cast<TileRow>(row + static_cast<unsigned>(j));
    ++at;
  }
}

/// Finds the rows of a warp, in `steps` steps from chunk `begin` on.
/// @param first  the first chunk of the tile
/// @return how many; where there are more than the list holds, it has not all of them
template <typename Row, typename Groups>
__device__ unsigned find_rows(const Grid<Row>& grid, std::uint64_t mask, Index first, Index begin,
                              int steps, Lists<Row, Groups>& lists) {
  constexpr int kCount = Rows<Row>::kCount;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  unsigned size = 0;
  for (int step = 0; step < steps && begin < grid.count; ++step, begin += kStep) {
    Rows<Row> chunks[kInFlight];
    if (begin >= grid.whole.begin && begin + kStep <= grid.whole.end) {
      for (int k = 0; k < kInFlight; ++k) chunks[k] = grid.load(begin + k * kWarp + lane);
    } else {
      for (int k = 0; k < kInFlight; ++k) chunks[k] = grid.load_part(begin + k * kWarp + lane);
    }
    Packed<Row> counts;
    for (int k = 0; k < kInFlight; ++k) counts.add(k, chunks[k].count_nonzero(mask));
    const Packed<Row> totals = counts.sum_up();
    unsigned end = size;
    for (int k = 0; k < kInFlight; ++k) end += totals[k];
    if (end <= Lists<Row, Groups>::kOfWarp) {
      unsigned at = size;
      for (int k = 0; k < kInFlight; ++k) {
        const auto row = static_cast<unsigned>(begin - first + k * kWarp + lane) * unsigned{kCount};
        append(chunks[k], mask, row, at + counts[k], lists.values[warp], lists.rows[warp]);
        at += totals[k];
      }
    }
    size = end;
  }
  return size;
}

/// Where a list is too short: goes through the rows of a warp once more, by short lists.
/// @param listed  listed(size), called by all lanes for each list
template <typename Row, typename Groups, typename Listed>
__device__ void find_again(const Grid<Row>& grid, std::uint64_t mask, Index first, Index begin,
                           int steps, Lists<Row, Groups>& lists, const Listed& listed) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const Index stop = begin + Index{steps} * kStep;
  for (; begin < stop && begin < grid.count; begin += kWarp) {
    const Rows<Row> chunk = grid.load_part(begin + lane);
    const unsigned count = chunk.count_nonzero(mask);
    unsigned end = count;
    for (unsigned distance = 1; distance < kWarp; distance *= 2) {
      const unsigned before = __shfl_up_sync(kAllLanes, end, distance);
      if (lane >= distance) end += before;
    }
    append(chunk, mask, static_cast<unsigned>(begin - first + lane) * Rows<Row>::kCount,
           end - count, lists.values[warp], lists.rows[warp]);
    __syncwarp();
    listed(__shfl_sync(kAllLanes, end, kWarp - 1));
    __syncwarp();
  }
}

// Bytes of shared memory: 32 K of lists (f32 with groups: 9 an item, 11% of 128 KiB), 3 K of sums
// of 64 groups. Read: the matrix once; where a tile's lists are too short twice, with groups
// thrice. Written: 8 bytes and the value of each row.
template <typename Row, typename Groups>
__global__ void __launch_bounds__(kBlock, 5)
    compact_narrow(Task task, Grid<Row> grid, Groups groups, TileSums sums, int steps) {
  using List = Lists<Row, Groups>;
  __shared__ Split<Groups::kMost> split;
  __shared__ List lists;
  const Index tile = split.take(sums);
  const unsigned warp = threadIdx.x / kWarp;
  const Index of_warp = Index{steps} * kStep;
  const Index first = tile * kBlockWarps * of_warp;
  const Index begin = first + warp * of_warp;
  const Index number = task.first_row + first * Rows<Row>::kCount - grid.skipped;
  TileRow* const rows = lists.rows[warp];
  typename Groups::Number* const numbers = lists.numbers[warp];

  const unsigned size = find_rows(grid, task.mask, first, begin, steps, lists);
  lists.sizes[warp] = size;
  __syncthreads();
  bool all_listed = true;
  for (const unsigned of_one : lists.sizes) all_listed = all_listed && of_one <= List::kOfWarp;

  if (all_listed || Groups::kMost == 1) {
    if (all_listed) name_groups(groups, number, rows, size, numbers);
    count_groups(groups, numbers, size, split.next());
  } else {
    find_again(grid, task.mask, first, begin, steps, lists, [&](unsigned listed) {
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
    find_again(grid, task.mask, first, begin, steps, lists, [&](unsigned listed) {
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
    compact_wide(Task task, Groups groups, TileSums sums, Index tile_rows, CopyPlan plan) {
  __shared__ Split<Groups::kMost> split;
  __shared__ MarkedRows<Groups> marked;
  marked.clear();
  const Index tile = split.take(sums);
  const Index first = tile * tile_rows;
  const Index left = task.dense.rows - first;
  const auto rows = static_cast<unsigned>(left < tile_rows ? left : tile_rows);
  const std::byte* const data = task.dense.data + first * task.row_bytes;
  const Index bytes = rows * task.row_bytes;
  find_nonzero(data, bytes, task.mask, [&](const Chunk& chunk, Index at) {
    const Index end = at + Chunk::kBytes < bytes ? at + Chunk::kBytes : bytes;
    Index begin = at < 0 ? 0 : at;
    // Tiles of several rows are no longer than 32 bits count.
    Index row =
        rows == 1 ? 0 : static_cast<unsigned>(begin) / static_cast<unsigned>(task.row_bytes);
    for (; begin < end; ++row) {
      const Index row_end = (row + 1) * task.row_bytes;
      const Index stop = row_end < end ? row_end : end;
      if (is_nonzero(chunk, static_cast<int>(begin - at), static_cast<int>(stop - at))) {
        marked.mark(row);
      }
      begin = stop;
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
  launch(context, tiles, kBlock, compact_wide<Groups>, task, groups, sums, tile_rows, plan);
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
    run_some<256, WideGroups>(context, task, groups, room, counts);
  } else if (groups.groups() <= 64) {
    run_some<64, NarrowGroups>(context, task, groups, room, counts);
  } else {
    run_some<256, NarrowGroups>(context, task, groups, room, counts);
  }
}

}  // namespace sparsesync::cuda
