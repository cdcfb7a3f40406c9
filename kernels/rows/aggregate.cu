// CUDA implementation of aggregate(): one kernel whose only scratch memory is a list of the parts.
//
// A block processes consecutive rows of the union, one batch at a time. It first reads the parts'
// indices in the range of the batch and records, for each row, which parts have it and at which
// position. It then sums row by row in registers, in the order of the parts.
#include "kernels/rows/aggregate.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cuda/groups.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lists.h"
#include "kernels/cuda/values.h"
#include "kernels/rows/rows.h"

namespace sparsesync::cuda {
namespace {

/// Parts per launch. More parts take several launches.
constexpr int kMostParts = 1024;
/// Rows per batch. An index within a batch must fit into a byte.
constexpr int kMostRows = 256;
/// Limit on rows per batch times parts.
constexpr int kMostPlaces = 1 << 14;

struct Part {
  const Index* indices;
  const std::byte* values;
  Index size;
};

/// Arguments of a launch, and the division of its work.
struct Work {
  const Part* parts;
  int part_count;
  unsigned lane_bits;  // log2 of the number of lanes that read a part's indices together
  const Index* united;
  Index rows;          // number of rows, or their capacity if `count` is set
  const Index* count;  // number of rows; null: `rows`
  Index rows_of_block;
  int rows_at_once;  // rows per batch, a power of two
  Index row_bytes;
  unsigned chunks;  // chunks per row; each is processed by a separate block
  Index units;      // per row
  unsigned units_of_chunk;
  std::byte* out;
  FaultWord* faults;
};

/// Initial values and destination of the sums. With several launches, sums go from one to the next.
template <typename Sum>
struct Sums {
  const Sum* before;  // null: sums start from +0
  Sum* after;         // null: the sums are complete
  Sum factor;
};

/// Data that the threads of a block share.
struct Shared {
  // Per part: position of its first index in or after the next batch.
  Index cursor[kMostParts];
  Index next[kMostParts];                 // Per part: that index, or the largest number at the end.
  const std::byte* rows[kMostParts];      // Per part: values from its first index in the batch.
  Index united[kMostRows];                // Indices of the batch, padded with the largest number.
  std::uint32_t parts[kMostPlaces / 32];  // A bit per row and part, in words of 32 parts.
  // Per part and row: offset of the row's values from rows[], in rows.
  std::uint8_t places[kMostPlaces];
};

constexpr Index kNone = std::numeric_limits<Index>::max();

__device__ Index index_at(const Part& part, Index place) {
  return place < part.size ? part.indices[place] : kNone;
}

/// Finds, for each part, the position of its first index from row `first` on. Indices below the
/// first row go to the first block, which finds that the union has no such row.
__device__ void find_cursors(const Work& work, Index first, Shared& shared) {
  const LaneGroup group(work.lane_bits);
  const Index bound = work.united[first];
  const auto groups = static_cast<int>(group.count());
  for (int base = 0; base < work.part_count; base += groups) {
    const int p = base + static_cast<int>(group.number());
    const bool has_part = p < work.part_count;
    const Part part = has_part ? work.parts[p] : Part{};
    const Index cursor = group.lower_bound(part.indices, first == 0 ? 0 : part.size, bound);
    if (has_part && group.lane() == 0) {
      shared.cursor[p] = cursor;
      shared.next[p] = index_at(part, cursor);
    }
  }
}

/// The current batch of rows.
struct Rows {
  Index first;
  int count;
  bool last;    // no block has rows after these
  Index limit;  // index of the next row, unless `last`
};

__device__ void begin_rows(const Work& work, const Rows& rows, Shared& shared) {
  for (int row = static_cast<int>(threadIdx.x); row < work.rows_at_once; row += kBlock) {
    shared.united[row] = row < rows.count ? work.united[rows.first + row] : kNone;
  }
  const int words = ceil_div(work.part_count, 32) * work.rows_at_once;
  for (int word = static_cast<int>(threadIdx.x); word < words; word += kBlock) {
    shared.parts[word] = 0;
  }
}

/// Indices that a lane loads together.
constexpr int kAhead = 4;

/// Finds, for each index, the first row of the batch that is not below it. If all rows are below,
/// the result is the last row of a full batch.
__device__ void find_rows(const Work& work, const Shared& shared, const Index (&indices)[kAhead],
                          int (&found)[kAhead]) {
  for (int k = 0; k < kAhead; ++k) found[k] = 0;
  for (int step = work.rows_at_once / 2; step > 0; step /= 2) {
    for (int k = 0; k < kAhead; ++k) {
      if (shared.united[found[k] + step - 1] < indices[k]) found[k] += step;
    }
  }
}

/// Records that part `p` has the row of the batch with this index. Its values are at offset `place`
/// from the part's first ones.
__device__ void put(const Work& work, const Rows& rows, Shared& shared, int p, Index place,
                    Index index, int row) {
  if (row >= rows.count || shared.united[row] != index || place >= work.rows_at_once) {
    record_fault(work.faults, Fault::not_in_union);
    return;
  }
  shared.places[p * work.rows_at_once + row] = static_cast<std::uint8_t>(place);
  atomicOr(&shared.parts[p / 32 * work.rows_at_once + row], 1U << static_cast<unsigned>(p % 32));
}

/// Finds the parts' rows in the batch.
/// @param columns  bytes of a row before the block's chunk
__device__ void find_parts(const Work& work, const Rows& rows, Index columns, Shared& shared) {
  const LaneGroup group(work.lane_bits);
  const auto groups = static_cast<int>(group.count());
  const Index lanes = group.lanes();
  const Index lane = group.lane();
  for (int base = 0; base < work.part_count; base += groups) {
    const int p = base + static_cast<int>(group.number());
    const bool has_part = p < work.part_count;
    const Part part = has_part ? work.parts[p] : Part{};
    const Index begin = has_part ? shared.cursor[p] : 0;
    // With many parts, most have no index in the batch. Skip reading their indices.
    bool more = has_part && (rows.last ? begin < part.size : shared.next[p] < rows.limit);
    if (has_part && lane == 0) shared.rows[p] = part.values + begin * work.row_bytes + columns;
    Index at = begin;
    while (__any_sync(kAllLanes, more ? 1 : 0) != 0) {
      Index indices[kAhead];
      for (int k = 0; k < kAhead; ++k) {
        indices[k] = more ? index_at(part, at + k * lanes + lane) : kNone;
      }
      Index taken = 0;
      for (int k = 0; k < kAhead; ++k) {
        const bool takes =
            more && at + k * lanes + lane < part.size && (rows.last || indices[k] < rows.limit);
        const Index leading = group.leading(takes);
        if (taken == k * lanes) taken += leading;
      }
      int found[kAhead];
      find_rows(work, shared, indices, found);
      for (int k = 0; k < kAhead; ++k) {
        const Index place = k * lanes + lane;
        if (place < taken) put(work, rows, shared, p, at - begin + place, indices[k], found[k]);
      }
      at += taken;
      more = more && taken == kAhead * lanes;
    }
    __syncwarp();  // all lanes have read the cursor
    if (at != begin && lane == 0) {
      shared.cursor[p] = at;
      shared.next[p] = index_at(part, at);
    }
  }
}

/// Iterates over the parts that have a row, in their order.
class PartsOfRow {
 public:
  __device__ PartsOfRow(const Work& work, const Shared& shared, int row)
      : words_(shared.parts + row),
        stride_(work.rows_at_once),
        left_(ceil_div(work.part_count, 32)) {}

  /// Returns the next part, or -1 at the end.
  __device__ int next() {
    while (word_ == 0) {
      if (left_ == 0) return -1;
      word_ = *words_;
      words_ += stride_;
      --left_;
      first_ += 32;
    }
    const int bit = __ffs(static_cast<int>(word_)) - 1;
    word_ &= word_ - 1;
    return first_ + bit;
  }

 private:
  const std::uint32_t* words_;
  int stride_;
  int left_;  // words left to read
  std::uint32_t word_ = 0;
  int first_ = -32;  // first part of the current word
};

// ---- Units: the pieces of a row that a thread loads at once.

/// An element at any address.
template <typename T>
struct Anywhere {
  T element;
};

template <typename T, typename Unit>
__device__ Unit load_unit(const std::byte* from) {
  if constexpr (std::is_same_v<Unit, Anywhere<T>>) {
    return {load_anywhere<T>(from)};
  } else if constexpr (std::is_same_v<Unit, uint4>) {
    return __ldcs(reinterpret_cast<const uint4*>(from));  // streaming load, because it is read once
  } else {
    return *reinterpret_cast<const Unit*>(from);
  }
}

template <typename T, typename Unit>
__device__ void store_unit(std::byte* to, Unit unit) {
  if constexpr (std::is_same_v<Unit, Anywhere<T>>) {
    store_anywhere(to, unit.element);
  } else {
    *reinterpret_cast<Unit*>(to) = unit;
  }
}

template <typename T>
__device__ typename ValueTraits<T>::Sum widen(T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, f16>) {
    // Gives the same result as widen() in one instruction, except that a NaN becomes quiet. Its sum
    // would be quiet anyway.
    float wide = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
  }
#endif
  return ValueTraits<T>::widen(value);
}

/// Holds the sums of a unit's elements.
template <typename T, typename Unit>
class UnitSums {
 public:
  using Sum = typename ValueTraits<T>::Sum;
  static constexpr int kElements = static_cast<int>(sizeof(Unit) / sizeof(T));

  /// @param before  initial values; null: start from +0
  __device__ explicit UnitSums(const Sum* before) {
    for (int i = 0; i < kElements; ++i) sums_[i] = before == nullptr ? Sum{} : before[i];
  }
  __device__ void add(Unit unit) {
    T elements[kElements];
    std::memcpy(static_cast<void*>(elements), &unit, sizeof(unit));
    for (int i = 0; i < kElements; ++i) sums_[i] += widen(elements[i]);
  }
  __device__ void write(Sum* to) const {
    for (int i = 0; i < kElements; ++i) to[i] = sums_[i];
  }
  __device__ Unit rounded(Sum factor) const {
    T elements[kElements];
    for (int i = 0; i < kElements; ++i) {
      elements[i] = sparsesync::detail::round_sum<T>(sums_[i], factor);
    }
    Unit unit;
    std::memcpy(static_cast<void*>(&unit), elements, sizeof(unit));
    return unit;
  }

 private:
  Sum sums_[kElements];
};

/// Sums the rows of the batch.
/// @param first_unit  first unit of the block's chunk
template <typename T, typename Unit>
__device__ void sum_rows(const Work& work, const Rows& rows, Index first_unit, unsigned units,
                         const Shared& shared, const Sums<typename ValueTraits<T>::Sum>& sums) {
  constexpr Index kElements = UnitSums<T, Unit>::kElements;
  if (units == 0) return;
  // Threads go through the units row by row.
  const auto rows_on = static_cast<int>(kBlock / units);
  const unsigned units_on = kBlock % units;
  auto row = static_cast<int>(threadIdx.x / units);
  unsigned unit = threadIdx.x % units;
  while (row < rows.count) {
    const Index in_row = first_unit + unit;
    const Index element = ((rows.first + row) * work.units + in_row) * kElements;
    UnitSums<T, Unit> sum(sums.before == nullptr ? nullptr : sums.before + element);
    PartsOfRow parts(work, shared, row);
    bool more = true;
    while (more) {
      Unit read[kAhead];  // loads in flight together
      bool has[kAhead];
      for (int k = 0; k < kAhead; ++k) {
        const int p = parts.next();
        has[k] = p >= 0;
        read[k] = Unit{};
        if (!has[k]) continue;
        const Index place = shared.places[p * work.rows_at_once + row];
        read[k] = load_unit<T, Unit>(shared.rows[p] + place * work.row_bytes +
                                     unit * static_cast<Index>(sizeof(Unit)));
      }
      for (int k = 0; k < kAhead; ++k) {
        if (has[k]) sum.add(read[k]);
      }
      more = has[kAhead - 1];
    }
    if (sums.after != nullptr) {
      sum.write(sums.after + element);
    } else {
      store_unit<T, Unit>(work.out + element * static_cast<Index>(sizeof(T)),
                          sum.rounded(sums.factor));
    }
    row += rows_on;
    unit += units_on;
    if (unit >= units) {
      unit -= units;
      ++row;
    }
  }
}

template <typename T, typename Unit>
__global__ void __launch_bounds__(kBlock, 4)
    aggregate_rows(Work work, Sums<typename ValueTraits<T>::Sum> sums) {
  __shared__ Shared shared;
  if (work.count != nullptr) work.rows = smaller(*work.count, work.rows);
  const Index begin = blockIdx.x / work.chunks * work.rows_of_block;
  if (begin >= work.rows) return;
  const Index end = smaller(begin + work.rows_of_block, work.rows);
  const Index first_unit = Index{blockIdx.x % work.chunks} * work.units_of_chunk;
  const auto units = static_cast<unsigned>(smaller(work.units_of_chunk, work.units - first_unit));
  find_cursors(work, begin, shared);
  for (Index first = begin; first < end; first += work.rows_at_once) {
    const auto count = static_cast<int>(smaller(work.rows_at_once, end - first));
    const Index next = first + count;
    const bool last = next == work.rows;
    const Rows rows{first, count, last, last ? kNone : work.united[next]};
    begin_rows(work, rows, shared);
    __syncthreads();
    find_parts(work, rows, first_unit * static_cast<Index>(sizeof(Unit)), shared);
    __syncthreads();
    sum_rows<T, Unit>(work, rows, first_unit, units, shared, sums);
    __syncthreads();
  }
}

// ---- On the host.

/// Divides the work of a launch into blocks.
/// @return number of blocks
Index cut(const Context& context, Work& work) {
  work.rows_at_once = kMostRows;
  while (work.rows_at_once * work.part_count > kMostPlaces) work.rows_at_once /= 2;
  work.lane_bits = 5;
  while (work.lane_bits > 0 && work.part_count << work.lane_bits > kBlock) --work.lane_bits;
  // Use somewhat more blocks than the device runs at once, because rows of a skewed union differ in
  // cost. Each block needs enough rows to occupy all its threads, and to pay for its initial search
  // in the parts.
  const Index wanted = blocks_for(context, work.rows, 1);
  const Index least =
      std::max<Index>(std::clamp<Index>(kBlock / std::max<Index>(work.units, 1), 16, kMostRows),
                      work.part_count / 16);
  const Index rows = std::max(ceil_div(work.rows, wanted), least);
  work.rows_of_block = rows < work.rows_at_once ? rows : rows - rows % work.rows_at_once;
  const Index blocks = ceil_div(work.rows, work.rows_of_block);
  // Divide wide rows into chunks if there are few rows. A block counts its units in 32 bits.
  constexpr Index kMostUnits = Index{1} << 20;
  const Index chunks =
      std::max({std::min(ceil_div<Index>(work.units, kBlock), ceil_div(wanted, blocks)),
                ceil_div(work.units, kMostUnits), Index{1}});
  work.units_of_chunk = static_cast<unsigned>(ceil_div(work.units, chunks));
  work.chunks = work.units == 0
                    ? 1U
                    : static_cast<unsigned>(ceil_div<Index>(work.units, work.units_of_chunk));
  return blocks * work.chunks;
}

template <typename T, typename Unit>
void aggregate_in(const Context& context, Scratch& scratch, std::span<const Part> parts,
                  std::span<const Index> united, const Index* rows, double scale, Matrix out) {
  using Sum = typename ValueTraits<T>::Sum;
  const auto count = static_cast<int>(parts.size());
  Sum* partial = nullptr;
  if (count > kMostParts) {
    partial = sum_dtype(out.dtype) == out.dtype
                  ? reinterpret_cast<Sum*>(out.data)
                  : scratch.allocate<Sum>(out.rows * out.width).data();
  }
  int first = 0;
  do {  // run at least once: without parts the sums are 0
    Work work{};
    work.parts = parts.data() + first;
    work.part_count = std::min(count - first, kMostParts);
    work.united = united.data();
    work.rows = out.rows;
    work.count = rows;
    work.row_bytes = out.row_bytes();
    work.units = work.row_bytes / static_cast<Index>(sizeof(Unit));
    work.out = out.data;
    work.faults = stream_of(context).faults();
    const bool complete = first + work.part_count == count;
    const Sums<Sum> sums{first == 0 ? nullptr : partial, complete ? nullptr : partial,
                         static_cast<Sum>(scale)};
    const Index blocks = cut(context, work);
    launch<aggregate_rows<T, Unit>>(context, blocks, kBlock, work, sums);
    first += work.part_count;
  } while (first < count);
}

/// Runs the kernel for units of `unit` bytes.
/// @param unit  bytes; divides the addresses and sizes of all rows
template <typename T>
void aggregate_of(const Context& context, Scratch& scratch, std::span<const Part> parts,
                  std::span<const Index> united, const Index* rows, double scale, Matrix out,
                  int unit) {
  if (unit == 16) {
    aggregate_in<T, uint4>(context, scratch, parts, united, rows, scale, out);
  } else if constexpr (sizeof(T) == 2) {
    if (unit >= 4) {
      aggregate_in<T, std::uint32_t>(context, scratch, parts, united, rows, scale, out);
    } else {
      aggregate_in<T, Anywhere<T>>(context, scratch, parts, united, rows, scale, out);
    }
  } else if (unit >= static_cast<int>(sizeof(T))) {
    aggregate_in<T, T>(context, scratch, parts, united, rows, scale, out);
  } else {
    aggregate_in<T, Anywhere<T>>(context, scratch, parts, united, rows, scale, out);
  }
}

/// @param rows  Work::count
void run(const Context& context, std::span<const Index> united, const Index* rows,
         std::span<const RowSparse> parts, double scale, Matrix out) {
  SPARSESYNC_EXPECT(out.rows, ==, std::ssize(united));
  Index filled = 0;
  std::uint64_t addresses = address_of(out.data) | static_cast<std::uint64_t>(out.row_bytes());
  for (const RowSparse& part : parts) {
    SPARSESYNC_EXPECT(std::ssize(part.indices), ==, part.values.rows);
    SPARSESYNC_EXPECT(part.values.width, ==, out.width);
    SPARSESYNC_EXPECT(std::string(name_of(part.values.dtype)), ==, std::string(name_of(out.dtype)));
    if (part.indices.empty()) continue;
    ++filled;
    addresses |= address_of(part.values.data);
  }
  if (united.empty()) {
    SPARSESYNC_EXPECT(filled, ==, Index{0});
    return;
  }
  Scratch scratch(context);
  std::size_t next = 0;
  const std::span<const Part> on_device =
      upload_made<Part>(context, scratch, filled, [&](Index /*number*/) {
        while (parts[next].indices.empty()) ++next;
        const RowSparse& part = parts[next++];
        return Part{part.indices.data(), part.values.data, std::ssize(part.indices)};
      });
  const int unit = common_unit(addresses);
  for_dtype(out.dtype, [&]<typename T>(T) {
    aggregate_of<T>(context, scratch, on_device, united, rows, scale, out, unit);
  });
}

}  // namespace

void aggregate(const Context& context, std::span<const Index> united,
               std::span<const RowSparse> parts, double scale, Matrix out,
               AggregateWorkspace& /*workspace*/) {
  run(context, united, nullptr, parts, scale, out);
}

void aggregate_counted(const Context& context, std::span<const Index> united, Count count,
                       std::span<const RowSparse> parts, double scale, Matrix out,
                       AggregateWorkspace& /*workspace*/) {
  run(context, united, count.location(), parts, scale, out);
}

}  // namespace sparsesync::cuda
