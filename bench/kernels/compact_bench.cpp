// Compact: 256 MiB of a dense tensor to its non-zero rows, beside the triad.
#include "kernels/compact.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"

namespace sparsesync::bench {
namespace {

constexpr Index kDenseBytes = Index{1} << 28;

/// `per_mille` of the rows are not zero, each in one element only: in its last, where it is found
/// last.
void compact_rows(benchmark::State& state) {
  const Index width = state.range(0);
  const Index rows = sized(kDenseBytes / static_cast<Index>(sizeof(float)) / width);
  const Host host(state.range(2));
  const std::vector<Index> touched = distinct_rows(rows, rows * state.range(1) / 1000);
  std::vector<float> dense(static_cast<std::size_t>(rows * width));
  for (const Index row : touched) {
    dense[static_cast<std::size_t>((row + 1) * width - 1)] = value_at(row, 0);
  }
  std::vector<Index> indices(touched.size());
  std::vector<float> values(touched.size() * static_cast<std::size_t>(width));
  Index found = 0;
  for ([[maybe_unused]] auto _ : state) {
    compact(host.context(), matrix_of(std::as_const(dense), width), 0, indices,
            matrix_of(values, width), Count(&found));
    benchmark::ClobberMemory();
  }
  bool right = found == static_cast<Index>(touched.size()) && indices == touched;
  for (std::size_t i = 0; right && i < values.size(); ++i) {
    const Index row = touched[i / static_cast<std::size_t>(width)];
    const bool last = (i + 1) % static_cast<std::size_t>(width) == 0;
    right = values[i] == (last ? value_at(row, 0) : 0.0F);
  }
  if (!right) state.SkipWithError("wrong rows");
  // What must be read and written: the tensor once, the result once.
  set_rates(state, rows,
            static_cast<Index>((dense.size() + values.size()) * sizeof(float) +
                               indices.size() * sizeof(Index)));
}

BENCHMARK(triad)->ArgNames({"threads"})->Arg(1);
BENCHMARK(triad)->ArgNames({"threads"})->Arg(2)->UseRealTime();
BENCHMARK(compact_rows)
    ->ArgNames({"width", "per_mille", "threads"})
    ->ArgsProduct({{1, 8, 32, 128}, {1, 10, 100}, {1}});
BENCHMARK(compact_rows)
    ->ArgNames({"width", "per_mille", "threads"})
    ->ArgsProduct({{32, 128}, {10}, {2}})
    ->UseRealTime();

}  // namespace
}  // namespace sparsesync::bench
