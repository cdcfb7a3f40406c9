// Measures the sorts on unordered keys.
#include "kernels/indices/sort.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "kernels/base/bits.h"
#include "kernels/rows/rows.h"

namespace sparsesync::bench {
namespace {

std::vector<Index> random_keys(Index bound, Index count) {
  std::vector<Index> keys(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<Index>(mix64(kSeed + i) % static_cast<std::uint64_t>(bound));
  }
  return keys;
}

void sort_with_order(benchmark::State& state) {
  const std::vector<Index> keys = random_keys(state.range(0), sized(state.range(1)));
  Workplace workplace(state.range(2));
  SortWorkspace workspace(workplace.context());
  const std::span<const Index> given = workplace.place(keys);
  const std::span<Index> keys_there = workplace.room<Index>(keys.size());
  const std::span<Index> order_there = workplace.room<Index>(keys.size());
  workplace.measure(state, [&] {
    // The copy is part of the measured time: about 2%.
    copy(workplace.context(), std::as_bytes(given), std::as_writable_bytes(keys_there).data());
    sparsesync::sort_with_order(workplace.context(), keys_there, order_there, state.range(0),
                                workspace);
  });
  const std::vector<Index> sorted = workplace.fetch(keys_there);
  const std::vector<Index> order = workplace.fetch(order_there);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (sorted[i] != keys[static_cast<std::size_t>(order[i])] ||
        (i > 0 && std::pair(sorted[i - 1], order[i - 1]) >= std::pair(sorted[i], order[i]))) {
      state.SkipWithError("not a stable sort");
      break;
    }
  }
  const auto count = static_cast<Index>(keys.size());
  set_rates(state, count, count * 3 * static_cast<Index>(sizeof(Index)));
}

BENCHMARK(sort_with_order)
    ->ArgNames({"bound", "count", "threads"})
    ->ArgsProduct({{kRows, Index{1} << 48}, {kCount}, {1}})
    ->Apply(timed);
const bool kThreadsOfSortWithOrder = of_cpu_alone([] {
  benchmark::RegisterBenchmark("sort_with_order", sort_with_order)
      ->ArgNames({"bound", "count", "threads"})
      ->ArgsProduct({{kRows, Index{1} << 48}, {kCount}, {2}})
      ->UseRealTime();
});

}  // namespace
}  // namespace sparsesync::bench
