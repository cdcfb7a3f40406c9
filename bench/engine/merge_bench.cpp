// Measures how long bucket planning takes, for as many layers as a large model has.
#include "engine/planner/schedule/merge.h"

#include <benchmark/benchmark.h>

#include <vector>

#include "bench/kernels/inputs.h"
#include "kernels/base/bits.h"

namespace sparsesync::bench {
namespace {

/// Layers like those of a deep network: a few large ones among many small ones.
struct Layers {
  explicit Layers(std::int64_t count) {
    bytes_before.push_back(0);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto drawn = static_cast<double>(mix64(static_cast<std::uint64_t>(i)) % 1000) / 1000;
      layers.push_back({1e-3 * drawn, 2e-3 * drawn, 1e6 * drawn * drawn * drawn});
      bytes_before.push_back(bytes_before.back() + layers.back().bytes);
    }
  }
  /// Each phase takes half of an all-reduce. Communication takes longer than both passes together.
  BucketCosts costs() const {
    return [this](LayerRange range) {
      const double bytes = bytes_before[static_cast<std::size_t>(range.last) + 1] -
                           bytes_before[static_cast<std::size_t>(range.first)];
      const double half = 2e-4 + 4e-9 * bytes;
      return BucketSeconds{0, half, half};
    };
  }
  std::vector<ScheduledLayer> layers;
  std::vector<double> bytes_before;
};

template <typename Plan>
void measure(benchmark::State& state, Plan&& plan) {
  const Layers model(is_small() ? 20 : state.range(0));
  const BucketCosts costs = model.costs();
  const ScheduleQuestion question{model.layers, costs};
  std::vector<LayerRange> buckets;
  for (auto _ : state) {
    buckets = plan(question);
    benchmark::DoNotOptimize(buckets.data());
  }
  std::int64_t layers = 0;
  for (const LayerRange range : buckets) layers += range.size();
  if (layers != std::ssize(model.layers)) state.SkipWithError("layers are missing");
  state.counters["buckets"] = static_cast<double>(buckets.size());
}

void exact(benchmark::State& state) {
  measure(state, [](const ScheduleQuestion& question) { return merge_exactly(question); });
}
void greedy(benchmark::State& state) {
  measure(state, [](const ScheduleQuestion& question) { return merge_greedily(question); });
}
void overlap(benchmark::State& state) {
  measure(state, [](const ScheduleQuestion& question) { return merge_for_overlap(question); });
}

BENCHMARK(exact)->ArgName("layers")->Arg(100)->Arg(1000)->Unit(benchmark::kMillisecond);
BENCHMARK(greedy)->ArgName("layers")->Arg(100)->Arg(1000)->Unit(benchmark::kMillisecond);
BENCHMARK(overlap)->ArgName("layers")->Arg(100)->Arg(1000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sparsesync::bench
