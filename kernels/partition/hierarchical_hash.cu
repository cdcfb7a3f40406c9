// CUDA implementations of hierarchical hashing.
#include "kernels/partition/hierarchical_hash.h"

#include <array>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/divider.h"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {
namespace {

/// Type of a cell: 4 bytes if these can represent every position. This halves the memory, so that
/// the cells for millions of rows fit into the GPU's L2 cache.
using NarrowCell = unsigned;
using WideCell = unsigned long long;

/// HashMemory::kFree, which is not a valid position.
template <typename Cell>
constexpr Cell kFreeCell = std::numeric_limits<Cell>::max();

/// Calls `body` with a cell of the smallest type that holds the positions of `rows` rows.
template <typename Body>
void with_cell(Index rows, Body&& body) {
  if (rows < static_cast<Index>(kFreeCell<NarrowCell>)) return body(NarrowCell{});
  body(WideCell{});
}

constexpr Index kUnitBytes = 16;  // cells are read in units of this size

/// Returns the number of Buffer<Index> elements for `cells` cells, rounded up to complete units.
template <typename Cell>
Index words_for(Index cells) {
  return round_up<Index>(cells * static_cast<Index>(sizeof(Cell)), kUnitBytes) /
         static_cast<Index>(sizeof(Index));
}

/// Hash memory, for kernels.
template <typename Cell>
struct Cells {
  Cells(const RowHash& hash, const HashMemory& memory)
      : parallel(reinterpret_cast<Cell*>(memory.parallel.data())),
        serial(reinterpret_cast<Cell*>(memory.serial.data())),
        serial_used(reinterpret_cast<unsigned long long*>(memory.serial_used.data())),
        partitions(hash.partitions()),
        parallel_cells(memory.parallel_cells),
        serial_cells(memory.serial_cells) {}

  Cell* parallel;
  Cell* serial;
  unsigned long long* serial_used;
  Index partitions;
  Index parallel_cells;
  Index serial_cells;
};

using Divider64 = Divider<std::uint64_t>;

Divider64 divider(Index by) {
  return Divider64(static_cast<std::uint64_t>(by));
}

/// Empties cells of either size: kFree has all bits set.
void empty(const Context& context, std::span<Index> parallel, std::span<Index> used) {
  const auto words = std::ssize(parallel);
  const auto partitions = std::ssize(used);
  Index* const cells = parallel.data();
  Index* const counts = used.data();
  for_each(context, std::max(words, partitions), [=] __device__(Index i) {
    if (i < words) cells[i] = HashMemory::kFree;
    if (i < partitions) counts[i] = 0;
  });
}

template <typename Cell>
void hash_into(const Context& context, const RowHash& hash, std::span<const Index> rows,
               const Cells<Cell>& cells) {
  const Index* const from = rows.data();
  const Divider64 by_partitions = divider(cells.partitions);
  const Divider64 by_cells = divider(cells.parallel_cells);
  for_each(context, std::ssize(rows), [=] __device__(Index i) {
    const Index row = from[i];
    const auto place = static_cast<Cell>(i);
    const auto partition = static_cast<Index>(by_partitions.divide(hash.mixed(0, row)).remainder);
    Cell* const parallel = cells.parallel + partition * cells.parallel_cells;
    for (int attempt = 0; attempt < RowHash::kRehashes; ++attempt) {
      // Relaxed order suffices, because a later kernel reads the cells.
      Cell* const cell = parallel + by_cells.divide(hash.mixed(attempt + 1, row)).remainder;
      if (atomicCAS(cell, kFreeCell<Cell>, place) == kFreeCell<Cell>) return;
    }
    const auto used = static_cast<Index>(atomicAdd(cells.serial_used + partition, 1ULL));
    if (used < cells.serial_cells) cells.serial[partition * cells.serial_cells + used] = place;
  });
}

/// Writes a word for each input position, at that position: partition << place_bits | position.
struct PlaceWords {
  std::uint64_t* words;
  Index size;
  int place_bits;

  /// Writes the word for the position in a cell. Does nothing if the cell is free.
  template <typename Cell>
  __device__ void put(std::uint64_t partition, Cell cell) const {
    if (cell >= static_cast<std::uint64_t>(size)) return;
    words[cell] = partition << static_cast<unsigned>(place_bits) | cell;
  }
};

/// Cells that are read together.
template <typename Cell>
struct alignas(kUnitBytes) Unit {
  static constexpr Index kCells = kUnitBytes / static_cast<Index>(sizeof(Cell));
  Cell of[kCells];
};

/// Reads all cells.
template <typename Cell>
void collect(const Context& context, const Cells<Cell>& cells, PlaceWords words) {
  const Index units = ceil_div(cells.partitions * cells.parallel_cells, Unit<Cell>::kCells);
  const Divider64 by_parallel = divider(cells.parallel_cells);
  const Divider64 by_serial = divider(cells.serial_cells);
  for_each(context, units + cells.partitions * cells.serial_cells, [=] __device__(Index i) {
    if (i >= units) {
      const auto at = by_serial.divide(static_cast<std::uint64_t>(i - units));
      const bool used = at.remainder < cells.serial_used[at.quotient];
      if (used) words.put(at.quotient, cells.serial[i - units]);
      return;
    }
    const Unit<Cell> unit = reinterpret_cast<const Unit<Cell>*>(cells.parallel)[i];
    auto at = by_parallel.divide(static_cast<std::uint64_t>(i * Unit<Cell>::kCells));
    for (const Cell cell : unit.of) {
      words.put(at.quotient, cell);
      if (++at.remainder == static_cast<std::uint64_t>(cells.parallel_cells)) {
        at = {at.quotient + 1, 0};
      }
    }
  });
}

}  // namespace

Index hash_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                HashMemory& memory) {
  const Index partitions = hash.partitions();
  const std::span<Index> used = memory.serial_used.reserve(partitions);
  with_cell(std::ssize(rows), [&]<typename Cell>(Cell) {
    memory.serial.reserve(words_for<Cell>(partitions * memory.serial_cells));
    const std::span<Index> parallel =
        memory.parallel.reserve(words_for<Cell>(partitions * memory.parallel_cells));
    empty(context, parallel, used);
    hash_into(context, hash, rows, Cells<Cell>(hash, memory));
  });
  Index most = 0;
  std::array<Index, 256> fetched{};
  for (Index first = 0; first < partitions; first += std::ssize(fetched)) {
    const Index count = std::min(partitions - first, static_cast<Index>(std::ssize(fetched)));
    const std::span<Index> part = std::span(fetched).first(static_cast<std::size_t>(count));
    stream_of(context).download(std::as_bytes(part_of(used, {first, first + count})),
                                std::as_writable_bytes(part).data());
    most = std::max(most, *std::max_element(part.begin(), part.end()));
  }
  return most;
}

void extract_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                  const HashMemory& memory, std::span<Index> partition_rows,
                  std::span<Index> sources, std::span<Index> partition_begin) {
  SPARSESYNC_EXPECT(partition_rows.size(), ==, rows.size());
  SPARSESYNC_EXPECT(sources.size(), ==, rows.size());
  SPARSESYNC_EXPECT(std::ssize(partition_begin), ==, hash.partitions() + 1);
  if (rows.empty()) return clear(context, partition_begin.data(), partition_begin.size_bytes());
  const auto size = std::ssize(rows);
  const Index partitions = hash.partitions();
  const int place_bits = place_bits_of(size);
  const int partition_bits = bit_width_below(static_cast<std::uint64_t>(partitions));
  SPARSESYNC_EXPECT(fit_into_word(partition_bits, size), ==, true);
  Scratch scratch(context);
  const std::span<std::uint64_t> words = scratch.allocate<std::uint64_t>(size);
  with_cell(size, [&]<typename Cell>(Cell) {
    collect(context, Cells<Cell>(hash, memory), PlaceWords{words.data(), size, place_bits});
  });
  // Sort by partition only. The words of a partition keep the order of their positions.
  const SortedWords sorted{
      sort_words(context, scratch, words, place_bits, place_bits + partition_bits).data(),
      place_bits, nullptr};
  const Index* const from = rows.data();
  Index* const to = partition_rows.data();
  Index* const source_of = sources.data();
  Index* const begin = partition_begin.data();
  for_each(context, size, [=] __device__(Index i) {
    const Index place = sorted.source(i);
    source_of[i] = place;
    to[i] = from[place];
    write_begins(i, size, i == 0 ? 0 : sorted.key(i - 1), sorted.key(i), partitions, begin);
  });
}

}  // namespace sparsesync::cuda
