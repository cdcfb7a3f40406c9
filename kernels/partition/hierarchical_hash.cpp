// CPU implementations of hierarchical hashing.
#include "kernels/partition/hierarchical_hash.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/base/threads.h"

namespace sparsesync::cpu {
namespace {

constexpr Index kGrain = 2048;  // rows that are worth waking a thread for

/// Claims a cell if it is free. Relaxed order suffices, because the cells are read only after all
/// threads have joined.
bool claim(Index& cell, Index place) {
  Index expected = HashMemory::kFree;
  return std::atomic_ref(cell).compare_exchange_strong(expected, place, std::memory_order_relaxed);
}

/// Returns the cells of a partition.
std::span<Index> cells_of(const Buffer<Index>& memory, Index partition, Index cells) {
  return {memory.data() + partition * cells, static_cast<std::size_t>(cells)};
}

void hash_row(const RowHash& hash, Index row, Index place, HashMemory& memory) {
  const Index partition = hash.partition(row);
  const std::span<Index> parallel = cells_of(memory.parallel, partition, memory.parallel_cells);
  for (int attempt = 0; attempt < RowHash::kRehashes; ++attempt) {
    const Index cell = hash.cell(attempt, row, memory.parallel_cells);
    if (claim(parallel[static_cast<std::size_t>(cell)], place)) return;
  }
  const Index used =
      std::atomic_ref(memory.serial_used.data()[partition]).fetch_add(1, std::memory_order_relaxed);
  if (used < memory.serial_cells) {
    memory.serial.data()[partition * memory.serial_cells + used] = place;
  }
}

}  // namespace

Index hash_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                HashMemory& memory) {
  const std::span<Index> used = memory.serial_used.reserve(hash.partitions());
  std::fill(used.begin(), used.end(), Index{0});
  memory.serial.reserve(hash.partitions() * memory.serial_cells);
  const std::span<Index> parallel =
      memory.parallel.reserve(hash.partitions() * memory.parallel_cells);
  std::fill(parallel.begin(), parallel.end(), HashMemory::kFree);
  parallel_for(context, std::ssize(rows), kGrain, [&](IndexRange places) {
    for (Index place = places.begin; place < places.end; ++place) {
      hash_row(hash, rows[static_cast<std::size_t>(place)], place, memory);
    }
  });
  return *std::max_element(used.begin(), used.end());
}

void extract_rows(const Context& context, const RowHash& hash, std::span<const Index> rows,
                  const HashMemory& memory, std::span<Index> partition_rows,
                  std::span<Index> sources, std::span<Index> partition_begin) {
  SPARSESYNC_EXPECT(partition_rows.size(), ==, rows.size());
  SPARSESYNC_EXPECT(sources.size(), ==, rows.size());
  SPARSESYNC_EXPECT(std::ssize(partition_begin), ==, hash.partitions() + 1);
  const auto is_taken = [](Index cell) { return cell != HashMemory::kFree; };
  // A partition has many cells, so each is worth a thread.
  const auto for_each_partition = [&](auto&& body) {
    const Index grain = std::max<Index>(1, kGrain / std::max<Index>(1, memory.parallel_cells));
    parallel_for(context, hash.partitions(), grain, [&](IndexRange partitions) {
      for (Index partition = partitions.begin; partition < partitions.end; ++partition) {
        body(partition, cells_of(memory.parallel, partition, memory.parallel_cells),
             cells_of(memory.serial, partition, memory.serial_cells)
                 .first(static_cast<std::size_t>(memory.serial_used.data()[partition])));
      }
    });
  };
  partition_begin[0] = 0;
  for_each_partition([&](Index partition, std::span<Index> parallel, std::span<Index> serial) {
    partition_begin[static_cast<std::size_t>(partition) + 1] =
        std::count_if(parallel.begin(), parallel.end(), is_taken) + std::ssize(serial);
  });
  std::partial_sum(partition_begin.begin(), partition_begin.end(), partition_begin.begin());
  SPARSESYNC_EXPECT(partition_begin.back(), ==, std::ssize(rows));
  for_each_partition([&](Index partition, std::span<Index> parallel, std::span<Index> serial) {
    const auto begin = sources.begin() + partition_begin[static_cast<std::size_t>(partition)];
    auto end = std::copy_if(parallel.begin(), parallel.end(), begin, is_taken);
    end = std::copy(serial.begin(), serial.end(), end);
    std::sort(begin, end);
    std::transform(begin, end, partition_rows.begin() + (begin - sources.begin()),
                   [&](Index place) { return rows[static_cast<std::size_t>(place)]; });
  });
}

}  // namespace sparsesync::cpu
