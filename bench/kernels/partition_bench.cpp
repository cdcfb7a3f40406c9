// Measures partition, which maps rows to (group, position) and sorts them by position within each
// group, and its inverse.
#include "kernels/partition/partition.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "kernels/indices/radix_sort.h"
#include "kernels/partition/hierarchical_hash.h"
#include "kernels/partition/split_row_groups.h"

namespace sparsesync::bench {
namespace {

/// A partition of rows, with a check against its definition.
struct Partitioned {
  Partitioned(Index row_count, Index count, Index group_count)
      : groups({.rows = row_count, .groups = group_count, .seed = kSeed + 1}),
        rows(distinct_rows(row_count, count)),
        positions(rows.size()),
        sources(rows.size()),
        begin(static_cast<std::size_t>(group_count) + 1) {}

  bool is_right() const {
    std::vector<bool> seen(rows.size());
    for (std::size_t group = 0; group + 1 < begin.size(); ++group) {
      for (auto i = static_cast<std::size_t>(begin[group]);
           i < static_cast<std::size_t>(begin[group + 1]); ++i) {
        const auto source = static_cast<std::size_t>(sources[i]);
        const RowGroups::Place place = groups.locate(rows[source]);
        if (place.group != static_cast<Index>(group) || place.position != positions[i])
          return false;
        if (i > static_cast<std::size_t>(begin[group]) && positions[i - 1] >= positions[i]) {
          return false;
        }
        seen[source] = true;
      }
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
  }

  RowGroups groups;
  std::vector<Index> rows;
  std::vector<Index> positions;
  std::vector<Index> sources;
  std::vector<Index> begin;
};

/// The same partition on the measured device.
struct PlacedPartition {
  PlacedPartition(Workplace& workplace, const Partitioned& host)
      : rows(workplace.place(host.rows)),
        positions(workplace.room<Index>(host.rows.size())),
        sources(workplace.room<Index>(host.rows.size())),
        begin(workplace.room<Index>(host.begin.size())) {}

  void fetch(Workplace& workplace, Partitioned& host) const {
    host.positions = workplace.fetch(positions);
    host.sources = workplace.fetch(sources);
    host.begin = workplace.fetch(begin);
  }

  std::span<const Index> rows;
  std::span<Index> positions;
  std::span<Index> sources;
  std::span<Index> begin;
};

void partition_rows(benchmark::State& state) {
  Partitioned data(state.range(0), sized(state.range(1)), state.range(2));
  Workplace workplace(state.range(3));
  const PlacedPartition placed(workplace, data);
  SortWorkspace workspace(workplace.context());
  workplace.measure(state, [&] {
    partition(workplace.context(), data.groups, placed.rows, placed.positions, placed.sources,
              placed.begin, workspace);
  });
  placed.fetch(workplace, data);
  if (!data.is_right()) state.SkipWithError("a wrong partition");
  const auto count = static_cast<Index>(data.rows.size());
  set_rates(state, count, count * 3 * static_cast<Index>(sizeof(Index)));
}

/// Hierarchical hashing (Zen), which keeps the input order of the rows within a partition.
void partition_by_hash(benchmark::State& state) {
  const std::vector<Index> rows = distinct_rows(state.range(0), sized(state.range(1)));
  const RowHash hash(state.range(2), kSeed + 1);
  Workplace workplace(state.range(3));
  HashMemory memory(workplace.context());
  const std::span<const Index> given = workplace.place(rows);
  const std::span<Index> parts_there = workplace.room<Index>(rows.size());
  const std::span<Index> sources_there = workplace.room<Index>(rows.size());
  const std::span<Index> begin_there =
      workplace.room<Index>(static_cast<std::size_t>(hash.partitions()) + 1);
  workplace.measure(state, [&] {
    sparsesync::partition_by_hash(workplace.context(), hash, given, parts_there, sources_there,
                                  begin_there, memory);
  });
  const std::vector<Index> parts = workplace.fetch(parts_there);
  const std::vector<Index> sources = workplace.fetch(sources_there);
  const std::vector<Index> begin = workplace.fetch(begin_there);
  bool right = begin.back() == static_cast<Index>(rows.size());
  for (std::size_t part = 0; part + 1 < begin.size(); ++part) {
    for (auto i = static_cast<std::size_t>(begin[part]);
         right && i < static_cast<std::size_t>(begin[part + 1]); ++i) {
      // The rows increase. Therefore a row that follows a smaller one in a partition occurs only
      // once.
      right = parts[i] == rows[static_cast<std::size_t>(sources[i])] &&
              hash.partition(parts[i]) == static_cast<Index>(part) &&
              (i == static_cast<std::size_t>(begin[part]) || parts[i - 1] < parts[i]);
    }
  }
  if (!right) state.SkipWithError("a wrong partition");
  const auto count = static_cast<Index>(rows.size());
  set_rates(state, count, count * 3 * static_cast<Index>(sizeof(Index)));
}

/// Measures the part of partition before the sort by position. It packs each row's group and
/// position with its source index, and groups the rows. Runs on the CPU only.
void place_and_group(benchmark::State& state) {
  Partitioned data(state.range(0), sized(state.range(1)), state.range(2));
  const Workplace workplace(state.range(3));
  SortWorkspace workspace(workplace.context());
  const auto count = static_cast<Index>(data.rows.size());
  const int low_bits = cpu::place_bits(data.rows.size());
  const std::span<std::uint64_t> words = cpu::words_of(data.positions);
  std::span<std::uint64_t> grouped;
  for ([[maybe_unused]] auto _ : state) {
    parallel_for(workplace.context(), count, Index{1} << 14, [&](IndexRange range) {
      cpu::pack_places(data.groups, data.rows, range, low_bits, words);
    });
    grouped = cpu::radix_sort(workplace.context(), words, workspace.words.reserve(count),
                              low_bits + cpu::position_bits(data.groups),
                              low_bits + cpu::key_bits(data.groups), workspace.counts);
    benchmark::ClobberMemory();
  }
  Index group = 0;
  for (const std::uint64_t word : grouped) {
    const RowGroups::Place place = data.groups.locate(data.rows[word & low_mask(low_bits)]);
    // NOLINTNEXTLINE(clang-analyzer-core.BitwiseShift): positions have fewer than 64 bits
    if (word >> static_cast<unsigned>(low_bits) != cpu::key_of(data.groups, place) ||
        place.group < group) {
      state.SkipWithError("a wrong place");
      break;
    }
    group = place.group;
  }
  set_rates(state, count, count * 2 * static_cast<Index>(sizeof(Index)));
}

void rows_of_positions(benchmark::State& state) {
  Partitioned data(state.range(0), sized(state.range(1)), 1);
  Workplace workplace(state.range(2));
  const PlacedPartition placed(workplace, data);
  SortWorkspace workspace(workplace.context());
  partition(workplace.context(), data.groups, placed.rows, placed.positions, placed.sources,
            placed.begin, workspace);
  const std::span<Index> rows_there = workplace.room<Index>(data.rows.size());
  workplace.measure(
      state, [&] { rows_at(workplace.context(), data.groups, 0, placed.positions, rows_there); });
  placed.fetch(workplace, data);
  const std::vector<Index> rows = workplace.fetch(rows_there);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != data.rows[static_cast<std::size_t>(data.sources[i])]) {
      state.SkipWithError("a wrong row");
      break;
    }
  }
  const auto count = static_cast<Index>(rows.size());
  set_rates(state, count, count * 2 * static_cast<Index>(sizeof(Index)));
}

BENCHMARK(partition_rows)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {1}})
    ->Args({kRows, Index{1} << 14, 16, 1})
    ->Args({Index{1} << 33, kCount, 16, 1})
    ->Apply(timed);
const bool kThreadsOfPartitionRows = of_cpu_alone([] {
  benchmark::RegisterBenchmark("partition_rows", partition_rows)
      ->ArgNames({"rows", "count", "groups", "threads"})
      ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {2}})
      ->UseRealTime();
});
BENCHMARK(partition_by_hash)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {1}})
    ->Apply(timed);
const bool kThreadsOfPartitionByHash = of_cpu_alone([] {
  benchmark::RegisterBenchmark("partition_by_hash", partition_by_hash)
      ->ArgNames({"rows", "count", "groups", "threads"})
      ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {2}})
      ->UseRealTime();
});
BENCHMARK(rows_of_positions)
    ->ArgNames({"rows", "count", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1}})
    ->Apply(timed);
const bool kThreadsOfRowsOfPositions = of_cpu_alone([] {
  benchmark::RegisterBenchmark("rows_of_positions", rows_of_positions)
      ->ArgNames({"rows", "count", "threads"})
      ->ArgsProduct({{kRows}, {kCount}, {2}})
      ->UseRealTime();
});
const bool kPlaces = of_cpu_alone([] {
  benchmark::RegisterBenchmark("place_and_group", place_and_group)
      ->ArgNames({"rows", "count", "groups", "threads"})
      ->ArgsProduct({{kRows}, {kCount}, {16, 1024}, {1}});
  benchmark::RegisterBenchmark("place_and_group", place_and_group)
      ->ArgNames({"rows", "count", "groups", "threads"})
      ->ArgsProduct({{kRows}, {kCount}, {16, 1024}, {2}})
      ->UseRealTime();
});

}  // namespace
}  // namespace sparsesync::bench
