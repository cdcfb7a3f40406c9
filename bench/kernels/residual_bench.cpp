// Measures the operations of sparsifiers on a residual that exceeds the caches, beside the triad.
// Each is one pass: add a gradient, compute chunk norms, find the top-k threshold, extract elements
// or chunks.
#include "kernels/topk/residual.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"
#include "kernels/topk/norms.h"
#include "kernels/topk/topk.h"

namespace sparsesync::bench {
namespace {

constexpr Index kChunk = Index{1} << 15;  // GradientFlow's chunk size
constexpr Index kBytes = static_cast<Index>(sizeof(float));
constexpr Index kPlaceBytes = static_cast<Index>(sizeof(Index));

/// Returns the number of elements: also on a GPU many times the L2 cache.
Index elements() {
  return sized(on_cuda() ? Index{1} << 28 : Index{1} << 25);
}

/// Returns magnitudes that few elements share and that do not depend on the index: a bijection of
/// the indices.
std::vector<float> spread_values() {
  const Bijection bijection(elements(), kSeed);
  std::vector<float> values(static_cast<std::size_t>(elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(bijection.forward(static_cast<Index>(i)) + 1);
    values[i] = i % 2 == 0 ? value : -value;
  }
  return values;
}

/// Counts the elements of `values` whose magnitude exceeds the threshold.
Index above(const std::vector<float>& values, const MagnitudeCut& cut) {
  return std::ranges::count_if(values, [&](float v) { return magnitude_of(v) > cut.level; });
}

/// Reads the gradient, the residual and the velocity; writes the residual and the velocity.
void add(benchmark::State& state, DType dtype, bool has_velocity) {
  const Index count = elements();
  Workplace workplace(1);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(count * element_bytes(dtype)));
  const ConstMatrix gradient{workplace.place(zeros).data(), dtype, count, 1};
  const std::vector<float> ones(static_cast<std::size_t>(count), 1.0F);
  const std::span<float> residual = workplace.place(ones);
  Velocity velocity{.values = {}, .momentum = 0};
  if (has_velocity) {
    velocity = {workplace.place(std::vector<float>(ones.size())), 0.9F, false};
  }
  const std::span<Index> lost = workplace.place(std::vector<Index>(1));
  workplace.measure(state, [&] {
    add_gradient(workplace.context(), gradient, 1, velocity, residual, Count(lost.data()));
  });
  if (workplace.fetch(residual) != ones || workplace.fetch(lost)[0] != 0) {
    state.SkipWithError("a wrong residual");
  }
  set_rates(state, count, count * (element_bytes(dtype) + (has_velocity ? 4 : 2) * kBytes));
}

void norms(benchmark::State& state) {
  const Index count = elements();
  Workplace workplace(1);
  const std::vector<float> twos(static_cast<std::size_t>(count), -2.0F);
  const std::span<const float> values = workplace.place(twos);
  const std::span<double> found =
      workplace.room<double>(static_cast<std::size_t>(ceil_div(count, kChunk)));
  workplace.measure(state, [&] { chunk_norms(workplace.context(), values, kChunk, found); });
  double sum = 0;
  for (const double norm : workplace.fetch(found)) sum += norm;
  if (sum != 2.0 * static_cast<double>(count)) state.SkipWithError("wrong norms");
  set_rates(state, count, count * kBytes);
}

void find(benchmark::State& state) {
  const std::vector<float> values = spread_values();
  const Index k = std::ssize(values) * state.range(0) / 1000;
  Workplace workplace(1);
  const std::span<const float> placed = workplace.place(values);
  const std::span<MagnitudeCut> cut = workplace.room<MagnitudeCut>(1);
  {
    CutWorkspace workspace(workplace.context());
    workplace.measure(state,
                      [&] { find_cut(workplace.context(), placed, k, cut.data(), workspace); });
    synchronize(workplace.context());
  }
  const MagnitudeCut found = workplace.fetch(cut)[0];
  if (above(values, found) + found.ties != k) state.SkipWithError("a wrong cut");
  set_rates(state, std::ssize(values), std::ssize(values) * kBytes);
}

/// Times `take` alone. `give_back` restores the residual before each iteration, so that every
/// iteration extracts the same elements.
template <typename Take, typename GiveBack>
void measure_taking(benchmark::State& state, Workplace& workplace, const Take& take,
                    const GiveBack& give_back) {
  take();
  workplace.measure(state, take, give_back);
  give_back();
}

void take(benchmark::State& state) {
  const std::vector<float> values = spread_values();
  const Index k = std::ssize(values) * state.range(0) / 1000;
  Workplace workplace(1);
  const std::span<float> residual = workplace.place(values);
  const std::span<MagnitudeCut> cut = workplace.room<MagnitudeCut>(1);
  const std::span<Index> indices = workplace.room<Index>(static_cast<std::size_t>(k));
  const std::span<float> taken = workplace.room<float>(indices.size());
  const std::span<Index> counts = workplace.place(std::vector<Index>(2));
  {
    CutWorkspace workspace(workplace.context());
    find_cut(workplace.context(), residual, k, cut.data(), workspace);
    synchronize(workplace.context());
  }
  measure_taking(
      state, workplace,
      [&] {
        take_largest(workplace.context(), residual, {}, cut.data(),
                     {indices, matrix_of(taken, 1), {}}, Count(counts.data()),
                     Count(counts.data() + 1));
      },
      [&] {
        give_back_rows(workplace.context(), as_const(matrix_of(taken, 1)), indices,
                       matrix_of(residual, 1));
      });
  bool right = workplace.fetch(residual) == values && workplace.fetch(counts)[0] == k;
  const std::vector<Index> places = workplace.fetch(indices);
  const std::vector<float> got = workplace.fetch(taken);
  for (std::size_t i = 0; right && i < got.size(); ++i) {
    right = got[i] == values[static_cast<std::size_t>(places[i])];
  }
  if (!right) state.SkipWithError("wrong elements");
  set_rates(state, std::ssize(values),
            std::ssize(values) * kBytes + k * (kPlaceBytes + 2 * kBytes));
}

/// Extracts every tenth chunk.
void take_chunks(benchmark::State& state) {
  const std::vector<float> values = spread_values();
  Workplace workplace(1);
  const std::span<float> residual = workplace.place(values);
  const Index width = std::min(kChunk, std::ssize(values));
  std::vector<Index> chosen;
  for (Index chunk = 0; chunk < std::ssize(values) / width; chunk += 10) chosen.push_back(chunk);
  const std::span<const Index> rows = workplace.place(chosen);
  const Index count = std::ssize(chosen) * width;
  const std::span<float> taken = workplace.room<float>(static_cast<std::size_t>(count));
  const std::span<Index> lost = workplace.place(std::vector<Index>(1));
  measure_taking(
      state, workplace,
      [&] {
        take_rows(workplace.context(), matrix_of(residual, width), rows, matrix_of(taken, width),
                  Count(lost.data()));
      },
      [&] {
        give_back_rows(workplace.context(), as_const(matrix_of(taken, width)), rows,
                       matrix_of(residual, width));
      });
  if (workplace.fetch(residual) != values) state.SkipWithError("wrong elements");
  set_rates(state, count, count * 3 * kBytes);
}

const bool kBaselines = add_baselines();
BENCHMARK_CAPTURE(add, f32, DType::f32, false)->Name("add_gradient/f32")->Apply(timed);
BENCHMARK_CAPTURE(add, bf16, DType::bf16, false)->Name("add_gradient/bf16")->Apply(timed);
BENCHMARK_CAPTURE(add, momentum, DType::f32, true)->Name("add_gradient/f32/momentum")->Apply(timed);
BENCHMARK(norms)->Name("chunk_norms")->Apply(timed);
BENCHMARK(find)->Name("find_cut")->ArgName("per_mille")->Arg(1)->Arg(10)->Arg(100)->Apply(timed);
BENCHMARK(take)
    ->Name("take_largest")
    ->ArgName("per_mille")
    ->Arg(1)
    ->Arg(10)
    ->Arg(100)
    ->Apply(timed);
BENCHMARK(take_chunks)->Name("take_rows")->Apply(timed);

}  // namespace
}  // namespace sparsesync::bench
