// Gather and scatter of rows that lie anywhere in a tensor outside the caches, beside the triad.
#include "kernels/rows.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"

namespace sparsesync::bench {
namespace {

constexpr Index kTensorBytes = Index{1} << 27;

/// Every fourth row of a tensor, in no order.
struct Tensor {
  explicit Tensor(Index width)
      : row_count(sized(kTensorBytes / static_cast<Index>(sizeof(float)) / width)),
        values(static_cast<std::size_t>(row_count * width)),
        rows(static_cast<std::size_t>(row_count / 4)) {
    const Bijection bijection(row_count, kSeed);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = bijection.forward(static_cast<Index>(i));
    }
  }
  Index row_count;
  std::vector<float> values;
  std::vector<Index> rows;
};

/// The rows are read once and written once, their numbers read once.
void set_row_rates(benchmark::State& state, const Tensor& tensor, Index width) {
  const auto count = static_cast<Index>(tensor.rows.size());
  set_rates(
      state, count,
      count * (static_cast<Index>(sizeof(Index)) + 2 * width * static_cast<Index>(sizeof(float))));
}

void gather(benchmark::State& state) {
  const Index width = state.range(0);
  Tensor tensor(width);
  const Host host(state.range(1));
  for (const Index row : tensor.rows) {
    for (Index column = 0; column < width; ++column) {
      tensor.values[static_cast<std::size_t>(row * width + column)] = value_at(row, column);
    }
  }
  std::vector<float> out(tensor.rows.size() * static_cast<std::size_t>(width));
  for ([[maybe_unused]] auto _ : state) {
    gather_rows(host.context(), matrix_of(std::as_const(tensor.values), width), tensor.rows, 0,
                matrix_of(out, width));
    benchmark::ClobberMemory();
  }
  if (out != values_of(tensor.rows, width)) state.SkipWithError("wrong rows");
  set_row_rates(state, tensor, width);
}

void scatter(benchmark::State& state) {
  const Index width = state.range(0);
  Tensor tensor(width);
  const Host host(state.range(1));
  const std::vector<float> from = values_of(tensor.rows, width);
  for ([[maybe_unused]] auto _ : state) {
    scatter_rows(host.context(), matrix_of(from, width), tensor.rows, 0,
                 matrix_of(tensor.values, width));
    benchmark::ClobberMemory();
  }
  std::vector<float> expected(tensor.values.size());
  for (const Index row : tensor.rows) {
    for (Index column = 0; column < width; ++column) {
      expected[static_cast<std::size_t>(row * width + column)] = value_at(row, column);
    }
  }
  if (tensor.values != expected) state.SkipWithError("wrong rows");
  set_row_rates(state, tensor, width);
}

BENCHMARK(triad)->ArgNames({"threads"})->Arg(1);
BENCHMARK(triad)->ArgNames({"threads"})->Arg(2)->UseRealTime();
BENCHMARK(gather)->ArgNames({"width", "threads"})->ArgsProduct({{1, 8, 32, 128}, {1}});
BENCHMARK(gather)->ArgNames({"width", "threads"})->ArgsProduct({{32, 128}, {2}})->UseRealTime();
BENCHMARK(scatter)->ArgNames({"width", "threads"})->ArgsProduct({{1, 8, 32, 128}, {1}});
BENCHMARK(scatter)->ArgNames({"width", "threads"})->ArgsProduct({{32, 128}, {2}})->UseRealTime();

}  // namespace
}  // namespace sparsesync::bench
