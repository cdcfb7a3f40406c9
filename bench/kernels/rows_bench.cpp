// Gather and scatter of rows that lie anywhere in a tensor outside the caches, and the sum of its
// squares, beside the triad.
#include "kernels/rows.h"

#include <benchmark/benchmark.h>

#include <utility>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"
#include "kernels/squares.h"

namespace sparsesync::bench {
namespace {

/// On a GPU many times its L2, too.
Index tensor_bytes() {
  return on_cuda() ? Index{1} << 30 : Index{1} << 27;
}

/// Every fourth row of a tensor, in no order.
struct Tensor {
  explicit Tensor(Index width)
      : row_count(sized(tensor_bytes() / static_cast<Index>(sizeof(float)) / width)),
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
  Workplace workplace(state.range(1));
  for (const Index row : tensor.rows) {
    for (Index column = 0; column < width; ++column) {
      tensor.values[static_cast<std::size_t>(row * width + column)] = value_at(row, column);
    }
  }
  const ConstMatrix from = as_const(matrix_of(workplace.place(tensor.values), width));
  const std::span<const Index> rows = workplace.place(tensor.rows);
  const std::span<float> out =
      workplace.room<float>(tensor.rows.size() * static_cast<std::size_t>(width));
  workplace.measure(
      state, [&] { gather_rows(workplace.context(), from, rows, 0, matrix_of(out, width)); });
  if (workplace.fetch(out) != values_of(tensor.rows, width)) state.SkipWithError("wrong rows");
  set_row_rates(state, tensor, width);
}

void scatter(benchmark::State& state) {
  const Index width = state.range(0);
  Tensor tensor(width);
  Workplace workplace(state.range(1));
  const ConstMatrix from =
      as_const(matrix_of(workplace.place(values_of(tensor.rows, width)), width));
  const std::span<const Index> rows = workplace.place(tensor.rows);
  const std::span<float> values = workplace.place(tensor.values);
  workplace.measure(
      state, [&] { scatter_rows(workplace.context(), from, rows, 0, matrix_of(values, width)); });
  std::vector<float> expected(tensor.values.size());
  for (const Index row : tensor.rows) {
    for (Index column = 0; column < width; ++column) {
      expected[static_cast<std::size_t>(row * width + column)] = value_at(row, column);
    }
  }
  if (workplace.fetch(values) != expected) state.SkipWithError("wrong rows");
  set_row_rates(state, tensor, width);
}

const bool kYardsticks = add_yardsticks();
void squares(benchmark::State& state) {
  Workplace workplace(state.range(0));
  const Index elements = sized(tensor_bytes() / static_cast<Index>(sizeof(float)));
  const std::vector<float> twos(static_cast<std::size_t>(elements), 2.0F);
  const ConstMatrix values = as_const(matrix_of(workplace.place(twos), 1));
  const std::span<double> sum = workplace.room<double>(1);
  workplace.measure(state, [&] {
    fill_zero(workplace.context(), std::as_writable_bytes(sum));
    add_squares(workplace.context(), values, sum.data());
  });
  if (workplace.fetch(sum) != std::vector{4.0 * static_cast<double>(elements)}) {
    state.SkipWithError("a wrong sum");
  }
  set_rates(state, elements, elements * static_cast<Index>(sizeof(float)));
}

BENCHMARK(gather)
    ->ArgNames({"width", "threads"})
    ->ArgsProduct({{1, 8, 32, 128}, {1}})
    ->Apply(timed);
BENCHMARK(scatter)
    ->ArgNames({"width", "threads"})
    ->ArgsProduct({{1, 8, 32, 128}, {1}})
    ->Apply(timed);
BENCHMARK(squares)->ArgName("threads")->Arg(1)->Apply(timed);
const bool kThreads = of_cpu_alone([] {
  for (const auto& [name, row] : {std::pair{"gather", &gather}, std::pair{"scatter", &scatter}}) {
    benchmark::RegisterBenchmark(name, row)
        ->ArgNames({"width", "threads"})
        ->ArgsProduct({{32, 128}, {2}})
        ->UseRealTime();
  }
});

}  // namespace
}  // namespace sparsesync::bench
