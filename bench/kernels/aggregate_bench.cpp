// Measures unite and aggregate, which combine the parts of n workers into their sum, beside the
// triad.
#include "kernels/rows/aggregate.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"

namespace sparsesync::bench {
namespace {

/// Returns the bytes of all parts' values together: many times the last-level cache, limited to
/// kCount rows per part.
Index value_bytes() {
  return on_cuda() ? Index{1} << 31 : Index{1} << 28;
}

/// Parts of all workers. The rows of one part are `per_mille` of all rows.
struct Parts {
  Parts(Workplace& workplace, Index workers, Index width, Index per_mille) : width(width) {
    const Index row_bytes = width * static_cast<Index>(sizeof(float));
    const Index count = sized(std::min(kCount, value_bytes() / workers / row_bytes));
    range = {0, count * 1000 / per_mille};
    for (Index worker = 0; worker < workers; ++worker) {
      indices.push_back(
          distinct_rows(range.end, count, kSeed + static_cast<std::uint64_t>(worker)));
      values.push_back(values_of(indices.back(), width));
    }
    for (std::size_t worker = 0; worker < indices.size(); ++worker) {
      sets.emplace_back(workplace.place(indices[worker]));
      views.push_back({sets.back(), as_const(matrix_of(workplace.place(values[worker]), width))});
    }
    total = count * workers;
  }

  /// Whether `united` holds the rows of all parts and `sums` their sums. All parts have the same
  /// values in a row.
  bool is_sum(std::span<const Index> united, const std::vector<float>& sums) const {
    std::vector<std::size_t> at(indices.size());
    auto sum = sums.begin();
    for (const Index row : united) {
      int times = 0;
      for (std::size_t worker = 0; worker < at.size(); ++worker) {
        if (at[worker] == indices[worker].size() || indices[worker][at[worker]] != row) continue;
        ++at[worker];
        ++times;
      }
      if (times == 0) return false;
      for (Index column = 0; column < width; ++column) {
        if (*sum++ != static_cast<float>(times) * value_at(row, column)) return false;
      }
    }
    for (std::size_t worker = 0; worker < at.size(); ++worker) {
      if (at[worker] != indices[worker].size()) return false;
    }
    return true;
  }

  Index width;
  IndexRange range;
  Index total = 0;
  std::vector<std::vector<Index>> indices;
  std::vector<std::vector<float>> values;
  std::vector<std::span<const Index>> sets;
  std::vector<RowSparse> views;
};

void unite_parts(benchmark::State& state) {
  Workplace workplace(state.range(2));
  const Parts parts(workplace, state.range(0), 1, state.range(1));
  AggregateWorkspace workspace(workplace.context());
  const std::span<Index> united =
      workplace.room<Index>(static_cast<std::size_t>(std::min(parts.total, parts.range.size())));
  const std::span<Index> counted = workplace.room<Index>(1);
  workplace.measure(state, [&] {
    unite(workplace.context(), parts.range, parts.sets, united, Count(counted.data()), workspace);
  });
  const Index found = workplace.fetch(counted)[0];
  std::vector<Index> expected;
  for (const std::vector<Index>& set : parts.indices) {
    expected.insert(expected.end(), set.begin(), set.end());
  }
  std::sort(expected.begin(), expected.end());
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  if (workplace.fetch(united.first(static_cast<std::size_t>(found))) != expected) {
    state.SkipWithError("a wrong union");
  }
  set_rates(state, parts.total, (parts.total + found) * static_cast<Index>(sizeof(Index)));
}

void aggregate_parts(benchmark::State& state) {
  const Index width = state.range(1);
  Workplace workplace(state.range(3));
  const Parts parts(workplace, state.range(0), width, state.range(2));
  AggregateWorkspace workspace(workplace.context());
  const std::span<Index> room =
      workplace.room<Index>(static_cast<std::size_t>(std::min(parts.total, parts.range.size())));
  const std::span<Index> counted = workplace.room<Index>(1);
  unite(workplace.context(), parts.range, parts.sets, room, Count(counted.data()), workspace);
  const Index found = workplace.fetch(counted)[0];
  const std::span<const Index> united = room.first(static_cast<std::size_t>(found));
  const std::span<float> sums =
      workplace.room<float>(united.size() * static_cast<std::size_t>(width));
  workplace.measure(state, [&] {
    aggregate(workplace.context(), united, parts.views, 1, matrix_of(sums, width), workspace);
  });
  if (!parts.is_sum(workplace.fetch(united), workplace.fetch(sums))) {
    state.SkipWithError("wrong sums");
  }
  // Memory traffic at minimum: each part, the union's indices and its sums once.
  set_rates(state, parts.total,
            (parts.total + found) *
                (static_cast<Index>(sizeof(Index)) + width * static_cast<Index>(sizeof(float))));
}

const bool kBaselines = add_baselines();
BENCHMARK(unite_parts)
    ->ArgNames({"workers", "per_mille", "threads"})
    ->ArgsProduct({{8}, {10, 250}, {1}})
    ->Apply(timed);
BENCHMARK(aggregate_parts)
    ->ArgNames({"workers", "width", "per_mille", "threads"})
    ->ArgsProduct({{8}, {1, 8, 32, 128}, {10, 250}, {1}})
    ->ArgsProduct({{2, 16}, {32}, {10}, {1}})
    ->Apply(timed);
const bool kThreads = of_cpu_alone([] {
  benchmark::RegisterBenchmark("aggregate_parts", aggregate_parts)
      ->ArgNames({"workers", "width", "per_mille", "threads"})
      ->ArgsProduct({{8}, {1, 8, 32, 128}, {10, 250}, {2}})
      ->UseRealTime();
});

}  // namespace
}  // namespace sparsesync::bench
