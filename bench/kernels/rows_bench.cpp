// Measures gather and scatter of random rows of a tensor that exceeds the caches, the sum of its
// squares, and element-wise operations, beside the triad.
#include "kernels/rows/rows.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"
#include "kernels/rows/cast.h"
#include "kernels/topk/norms.h"

namespace sparsesync::bench {
namespace {

/// Returns the bytes of the tensor: also on a GPU many times the L2 cache.
Index tensor_bytes() {
  return on_cuda() ? Index{1} << 30 : Index{1} << 27;
}

/// Every fourth row of a tensor, in random order.
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

/// Memory traffic: rows are read and written once, row indices read once.
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

const bool kBaselines = add_baselines();
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

// ---- Element-wise operations.

/// Returns the element count: 2^28 bytes of f32 on a GPU.
std::size_t element_count() {
  return static_cast<std::size_t>(sized(on_cuda() ? Index{1} << 26 : Index{1} << 23));
}

constexpr float kNumber = 1.5F;
constexpr std::uint16_t kNumberAsBf16 = 0x3FC0;
constexpr Index kF32Bytes = 4;
constexpr Index kBf16Bytes = 2;

std::vector<float> f32_numbers() {
  return std::vector<float>(element_count(), kNumber);
}
std::vector<std::uint16_t> bf16_numbers() {
  return std::vector<std::uint16_t>(element_count(), kNumberAsBf16);
}
Matrix bf16_matrix_of(std::span<std::uint16_t> values) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::bf16, std::ssize(values), 1};
}

/// Measures an operation and checks its output.
/// @param bytes  bytes read and written per element
template <typename T, typename Operation>
void measure_elements(benchmark::State& state, Workplace& workplace, std::span<T> written,
                      const std::vector<T>& expected, Index bytes, const Operation& operation) {
  workplace.measure(state, operation);
  if (workplace.fetch(written) != expected) state.SkipWithError("wrong elements");
  const auto count = static_cast<Index>(element_count());
  set_rates(state, count, count * bytes);
}

void cast_to_bf16(benchmark::State& state) {
  Workplace workplace(1);
  const Matrix from = matrix_of(workplace.place(f32_numbers()), 1);
  const auto to = workplace.room<std::uint16_t>(element_count());
  measure_elements(state, workplace, to, bf16_numbers(), kF32Bytes + kBf16Bytes,
                   [&] { cast(workplace.context(), as_const(from), bf16_matrix_of(to)); });
}

void cast_to_f32(benchmark::State& state) {
  Workplace workplace(1);
  const Matrix from = bf16_matrix_of(workplace.place(bf16_numbers()));
  const auto to = workplace.room<float>(element_count());
  measure_elements(state, workplace, to, f32_numbers(), kBf16Bytes + kF32Bytes,
                   [&] { cast(workplace.context(), as_const(from), matrix_of(to, 1)); });
}

void start(benchmark::State& state) {
  Workplace workplace(1);
  const Matrix from = bf16_matrix_of(workplace.place(bf16_numbers()));
  const auto sums = workplace.room<float>(element_count());
  measure_elements(state, workplace, sums, f32_numbers(), kBf16Bytes + kF32Bytes,
                   [&] { start_sums(workplace.context(), as_const(from), matrix_of(sums, 1)); });
}

/// Adds zeros, so that the sums stay the same.
void add_elements(benchmark::State& state) {
  Workplace workplace(1);
  const Matrix addends = matrix_of(workplace.place(std::vector<float>(element_count())), 1);
  const auto sums = workplace.place(f32_numbers());
  measure_elements(state, workplace, sums, f32_numbers(), 3 * kF32Bytes,
                   [&] { add(workplace.context(), as_const(addends), matrix_of(sums, 1)); });
}

void round_to_bf16(benchmark::State& state) {
  constexpr double kScale = 0.5;
  Workplace workplace(1);
  const Matrix sums =
      matrix_of(workplace.place(std::vector<float>(element_count(), 2 * kNumber)), 1);
  const auto out = workplace.room<std::uint16_t>(element_count());
  measure_elements(state, workplace, out, bf16_numbers(), kF32Bytes + kBf16Bytes, [&] {
    round_sums(workplace.context(), as_const(sums), kScale, bf16_matrix_of(out));
  });
}

/// @param values  input; the first and the last element are set to infinity
template <typename T>
void count_two(benchmark::State& state, std::vector<T> values, T infinity, DType dtype) {
  values.front() = infinity;
  values.back() = infinity;
  Workplace workplace(1);
  const std::span<T> placed = workplace.place(values);
  const ConstMatrix matrix{reinterpret_cast<const std::byte*>(placed.data()), dtype,
                           std::ssize(placed), 1};
  const std::span<Index> found = workplace.room<Index>(1);
  measure_elements(state, workplace, found, {2}, element_bytes(dtype),
                   [&] { count_non_finite(workplace.context(), matrix, Count(found.data())); });
}

void count_f32(benchmark::State& state) {
  count_two(state, f32_numbers(), std::numeric_limits<float>::infinity(), DType::f32);
}
void count_bf16(benchmark::State& state) {
  constexpr std::uint16_t kInfinity = 0x7F80;
  count_two(state, bf16_numbers(), kInfinity, DType::bf16);
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
BENCHMARK(cast_to_bf16)->Name("cast/f32_to_bf16")->Apply(timed);
BENCHMARK(cast_to_f32)->Name("cast/bf16_to_f32")->Apply(timed);
BENCHMARK(count_f32)->Name("count_non_finite/f32")->Apply(timed);
BENCHMARK(count_bf16)->Name("count_non_finite/bf16")->Apply(timed);
BENCHMARK(start)->Name("start_sums/bf16")->Apply(timed);
BENCHMARK(add_elements)->Name("add/f32")->Apply(timed);
BENCHMARK(round_to_bf16)->Name("round_sums/bf16")->Apply(timed);
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
