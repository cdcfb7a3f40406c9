// Partition: rows to (group, position), grouped, sorted by position in each group; and back.
#include "kernels/partition.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "bench/kernels/inputs.h"
#include "kernels/bits.h"
#include "kernels/cpu/radix.h"
#include "kernels/cpu/row_groups.h"
#include "kernels/hierarchical_hash.h"

namespace sparsesync::bench {
namespace {

/// A partition of rows, and whether it is right by its definition.
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
        const RowGroups::Place place = groups.place(rows[source]);
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

void partition_rows(benchmark::State& state) {
  Partitioned data(state.range(0), sized(state.range(1)), state.range(2));
  const Host host(state.range(3));
  SortWorkspace workspace(host.context());
  for ([[maybe_unused]] auto _ : state) {
    partition(host.context(), data.groups, data.rows, data.positions, data.sources, data.begin,
              workspace);
    benchmark::ClobberMemory();
  }
  if (!data.is_right()) state.SkipWithError("a wrong partition");
  const auto count = static_cast<Index>(data.rows.size());
  set_rates(state, count, count * 3 * static_cast<Index>(sizeof(Index)));
}

/// Hierarchical hashing (Zen), which leaves the rows of a partition in the order of the input.
void partition_by_hash(benchmark::State& state) {
  const std::vector<Index> rows = distinct_rows(state.range(0), sized(state.range(1)));
  const RowHash hash(state.range(2), kSeed + 1);
  const Host host(state.range(3));
  HashMemory memory(host.context());
  std::vector<Index> parts(rows.size());
  std::vector<Index> sources(rows.size());
  std::vector<Index> begin(static_cast<std::size_t>(hash.partitions()) + 1);
  for ([[maybe_unused]] auto _ : state) {
    sparsesync::partition_by_hash(host.context(), hash, rows, parts, sources, begin, memory);
    benchmark::ClobberMemory();
  }
  bool right = begin.back() == static_cast<Index>(rows.size());
  for (std::size_t part = 0; part + 1 < begin.size(); ++part) {
    for (auto i = static_cast<std::size_t>(begin[part]);
         right && i < static_cast<std::size_t>(begin[part + 1]); ++i) {
      // The rows increase, so what increases in each partition is there once.
      right = parts[i] == rows[static_cast<std::size_t>(sources[i])] &&
              hash.partition(parts[i]) == static_cast<Index>(part) &&
              (i == static_cast<std::size_t>(begin[part]) || parts[i - 1] < parts[i]);
    }
  }
  if (!right) state.SkipWithError("a wrong partition");
  const auto count = static_cast<Index>(rows.size());
  set_rates(state, count, count * 3 * static_cast<Index>(sizeof(Index)));
}

/// What partition does before it sorts by position, alone: places, packed with where each row came
/// from, group after group.
void place_and_group(benchmark::State& state) {
  Partitioned data(state.range(0), sized(state.range(1)), state.range(2));
  const Host host(state.range(3));
  SortWorkspace workspace(host.context());
  const auto count = static_cast<Index>(data.rows.size());
  const int low_bits = cpu::place_bits(data.rows.size());
  const std::span<std::uint64_t> words = cpu::words_of(data.positions);
  std::span<std::uint64_t> grouped;
  for ([[maybe_unused]] auto _ : state) {
    parallel_for(host.context(), count, Index{1} << 14, [&](IndexRange range) {
      cpu::pack_places(data.groups, data.rows, range, low_bits, words);
    });
    grouped = cpu::radix_sort(host.context(), words, workspace.words.reserve(count),
                              low_bits + cpu::position_bits(data.groups),
                              low_bits + cpu::key_bits(data.groups), workspace.counts);
    benchmark::ClobberMemory();
  }
  Index group = 0;
  for (const std::uint64_t word : grouped) {
    const RowGroups::Place place = data.groups.place(data.rows[word & low_mask(low_bits)]);
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
  const Host host(state.range(2));
  SortWorkspace workspace(host.context());
  partition(host.context(), data.groups, data.rows, data.positions, data.sources, data.begin,
            workspace);
  std::vector<Index> rows(data.rows.size());
  for ([[maybe_unused]] auto _ : state) {
    rows_at(host.context(), data.groups, 0, data.positions, rows);
    benchmark::ClobberMemory();
  }
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
    ->Args({Index{1} << 33, kCount, 16, 1});
BENCHMARK(partition_rows)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {2}})
    ->UseRealTime();
BENCHMARK(partition_by_hash)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {1}});
BENCHMARK(partition_by_hash)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1, 16, 1024}, {2}})
    ->UseRealTime();
BENCHMARK(place_and_group)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {16, 1024}, {1}});
BENCHMARK(place_and_group)
    ->ArgNames({"rows", "count", "groups", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {16, 1024}, {2}})
    ->UseRealTime();
BENCHMARK(rows_of_positions)
    ->ArgNames({"rows", "count", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {1}});
BENCHMARK(rows_of_positions)
    ->ArgNames({"rows", "count", "threads"})
    ->ArgsProduct({{kRows}, {kCount}, {2}})
    ->UseRealTime();

}  // namespace
}  // namespace sparsesync::bench
