// Measures coalesce, which turns unordered rows with duplicates into increasing rows and their
// sums.
#include "kernels/rows/coalesce.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"
#include "kernels/base/bits.h"

namespace sparsesync::bench {
namespace {

/// Draws `count` times from count / repeats distinct rows of kRows.
std::vector<Index> drawn_rows(Index count, Index repeats) {
  const Bijection bijection(kRows, kSeed);
  const auto distinct = static_cast<std::uint64_t>(std::max<Index>(count / repeats, 1));
  std::vector<Index> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = bijection.forward(static_cast<Index>(mix64(kSeed + i) % distinct));
  }
  return rows;
}

/// Whether `indices` are the rows of `drawn` and `values` their sums. All values drawn for a row
/// are equal.
bool is_coalesced(const std::vector<Index>& drawn, std::span<const Index> indices,
                  const std::vector<float>& values, Index width) {
  std::vector<Index> sorted = drawn;
  std::sort(sorted.begin(), sorted.end());
  std::size_t at = 0;
  auto value = values.begin();
  for (const Index row : indices) {
    std::size_t times = 0;
    for (; at < sorted.size() && sorted[at] == row; ++at) ++times;
    if (times == 0) return false;
    for (Index column = 0; column < width; ++column) {
      if (*value++ != static_cast<float>(times) * value_at(row, column)) return false;
    }
  }
  return at == sorted.size();
}

void coalesce_rows(benchmark::State& state) {
  const Index count = sized(state.range(0));
  const Index width = state.range(2);
  Workplace workplace(state.range(3));
  CoalesceWorkspace workspace(workplace.context());
  const std::vector<Index> drawn = drawn_rows(count, state.range(1));
  const std::vector<float> given = values_of(drawn, width);
  const RowSparse from{workplace.place(drawn), as_const(matrix_of(workplace.place(given), width))};
  const std::span<Index> indices = workplace.room<Index>(drawn.size());
  const std::span<float> values = workplace.room<float>(given.size());
  const std::span<Index> counted = workplace.room<Index>(1);
  workplace.measure(state, [&] {
    coalesce(workplace.context(), from, {0, kRows}, indices, matrix_of(values, width),
             Count(counted.data()), workspace);
  });
  const Index found = workplace.fetch(counted)[0];
  const std::vector<Index> distinct =
      workplace.fetch(indices.first(static_cast<std::size_t>(found)));
  if (!is_coalesced(drawn, distinct, workplace.fetch(values), width)) {
    state.SkipWithError("wrong sums");
  }
  // Memory traffic at minimum: indices and values, read and written once.
  set_rates(state, count,
            (count + found) *
                (static_cast<Index>(sizeof(Index)) + width * static_cast<Index>(sizeof(float))));
}

const bool kBaselines = add_baselines();
BENCHMARK(coalesce_rows)
    ->ArgNames({"count", "repeats", "width", "threads"})
    ->ArgsProduct({{kCount}, {1, 4}, {1, 8, 32}, {1}})
    ->ArgsProduct({{kCount / 4}, {1, 4}, {128}, {1}})
    ->Apply(timed);
const bool kThreadsOfCoalesceRows = of_cpu_alone([] {
  benchmark::RegisterBenchmark("coalesce_rows", coalesce_rows)
      ->ArgNames({"count", "repeats", "width", "threads"})
      ->ArgsProduct({{kCount}, {1, 4}, {1, 8, 32}, {2}})
      ->ArgsProduct({{kCount / 4}, {1, 4}, {128}, {2}})
      ->UseRealTime();
});

}  // namespace
}  // namespace sparsesync::bench
