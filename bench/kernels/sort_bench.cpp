// The sorts, of keys in no order.
#include "kernels/sort.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "bench/kernels/inputs.h"
#include "kernels/bits.h"

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
  const Host host(state.range(2));
  SortWorkspace workspace(host.context());
  std::vector<Index> sorted(keys.size());
  std::vector<Index> order(keys.size());
  for ([[maybe_unused]] auto _ : state) {
    sorted = keys;  // part of what is timed: some 2% of it
    sparsesync::sort_with_order(host.context(), sorted, order, state.range(0), workspace);
    benchmark::ClobberMemory();
  }
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
    ->ArgsProduct({{kRows, Index{1} << 48}, {kCount}, {1}});
BENCHMARK(sort_with_order)
    ->ArgNames({"bound", "count", "threads"})
    ->ArgsProduct({{kRows, Index{1} << 48}, {kCount}, {2}})
    ->UseRealTime();

}  // namespace
}  // namespace sparsesync::bench
