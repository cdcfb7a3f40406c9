// Measures compact, which extracts the non-zero rows of a dense tensor, and compact_groups, which
// also groups them, beside the memory bandwidth.
#include "kernels/rows/compact.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "bench/kernels/memory.h"
#include "kernels/partition/hierarchical_hash.h"

namespace sparsesync::bench {
namespace {

constexpr Index kDenseBytes = Index{1} << 28;
constexpr Index kGroups = 16;

/// Returns the number of elements of the tensor: on a GPU that of the paper's tensor.
Index elements_of(DType dtype) {
  return sized(on_cuda() ? kTensorElements : kDenseBytes / element_bytes(dtype));
}

/// Returns `count` distinct, increasing rows of [0, rows), in runs of `run` neighbours: an
/// embedding's rows in a tensor of single elements.
std::vector<Index> clustered_rows(Index rows, Index count, Index run) {
  std::vector<Index> chosen;
  for (const Index first : distinct_rows(std::max<Index>(rows / run, 1), count / run)) {
    for (Index i = 0; i < run; ++i) chosen.push_back(first * run + i);
  }
  return chosen;
}

/// A dense tensor with `per_mille` non-zero rows, in runs of `run` neighbours. In each of them only
/// the last element is not zero, which is the last one that a search reads.
struct Dense {
  Dense(DType dtype, Index width, Index per_mille, Index run = 1)
      : dtype(dtype),
        width(width),
        rows(std::max<Index>(elements_of(dtype) / width, 1)),
        touched(clustered_rows(rows, rows * per_mille / 1000, run)),
        elements(static_cast<std::size_t>(rows * width * element_bytes(dtype))) {
    for (const Index row : touched) write(elements.data(), (row + 1) * width - 1, row);
  }

  /// Writes a value for f32 and bf16. The numbers from 1 to 8 in bf16 are the upper halves of those
  /// in f32.
  void write(std::byte* to, Index element, Index row) const {
    const float value = value_at(row, 0);
    const Index bytes = element_bytes(dtype);
    std::memcpy(to + element * bytes,
                reinterpret_cast<const std::byte*>(&value) +
                    (sizeof(value) - static_cast<std::size_t>(bytes)),
                static_cast<std::size_t>(bytes));
  }

  ConstMatrix place(Workplace& workplace) const {
    return {workplace.place(elements).data(), dtype, rows, width};
  }
  Index row_bytes() const { return width * element_bytes(dtype); }

  /// Whether `values` is row `row` of the tensor.
  bool is_row(const std::byte* values, Index row) const {
    return std::memcmp(values, elements.data() + row * row_bytes(),
                       static_cast<std::size_t>(row_bytes())) == 0;
  }

  DType dtype;
  Index width;
  Index rows;
  std::vector<Index> touched;
  std::vector<std::byte> elements;
};

/// Memory traffic at minimum: the tensor and the result once.
void set_compact_rates(benchmark::State& state, const Dense& dense) {
  const auto found = static_cast<Index>(dense.touched.size());
  set_rates(state, dense.rows,
            static_cast<Index>(dense.elements.size()) +
                found * (dense.row_bytes() + static_cast<Index>(sizeof(Index))));
}

void compact_dtype(benchmark::State& state, DType dtype, Index threads, Index run) {
  const Dense dense(dtype, state.range(0), state.range(1), run);
  Workplace workplace(threads);
  const ConstMatrix from = dense.place(workplace);
  const std::size_t found = dense.touched.size();
  const std::span<Index> indices = workplace.room<Index>(found);
  const std::span<std::byte> values =
      workplace.room<std::byte>(found * static_cast<std::size_t>(dense.row_bytes()));
  const std::span<Index> count = workplace.room<Index>(1);
  workplace.measure(state, [&] {
    compact(workplace.context(), from, 0, indices,
            {values.data(), dtype, static_cast<Index>(found), dense.width}, Count(count.data()));
  });
  bool right = workplace.fetch(count)[0] == static_cast<Index>(found) &&
               workplace.fetch(indices) == dense.touched;
  const std::vector<std::byte> got = workplace.fetch(values);
  for (std::size_t i = 0; right && i < found; ++i) {
    right = dense.is_row(got.data() + static_cast<Index>(i) * dense.row_bytes(), dense.touched[i]);
  }
  if (!right) state.SkipWithError("wrong rows");
  set_compact_rates(state, dense);
}

void compact_rows(benchmark::State& state) {
  compact_dtype(state, DType::f32, state.range(2), 1);
}

/// Compacts the rows of an embedding in a tensor of single elements. Zen's density of 5.2% comes
/// from such rows.
void compact_clustered(benchmark::State& state, DType dtype) {
  compact_dtype(state, dtype, 1, state.range(2));
}

/// Compacts and partitions by the bijection in one pass.
void compact_groups_dtype(benchmark::State& state, DType dtype, Index count = kGroups,
                          Index run = 1) {
  const Dense dense(dtype, state.range(0), state.range(1), run);
  const RowGroups groups({.rows = dense.rows, .groups = count, .seed = kSeed + 1});
  Workplace workplace(1);
  const ConstMatrix from = dense.place(workplace);
  // The bijection spreads rows evenly. If a group exceeded its capacity, rows would be missing.
  const auto mean = static_cast<Index>(dense.touched.size()) / count;
  const Index room = mean + mean / 8 + 64;
  const std::span<Index> indices = workplace.room<Index>(static_cast<std::size_t>(count * room));
  const std::span<std::byte> values =
      workplace.room<std::byte>(static_cast<std::size_t>(count * room * dense.row_bytes()));
  const std::span<Index> counts = workplace.room<Index>(static_cast<std::size_t>(count));
  workplace.measure(state, [&] {
    compact_groups(workplace.context(), from, 0, groups, indices,
                   {values.data(), dtype, count * room, dense.width}, counts);
  });
  std::vector<std::vector<Index>> expected(static_cast<std::size_t>(count));
  for (const Index row : dense.touched) {
    expected[static_cast<std::size_t>(groups.locate(row).group)].push_back(row);
  }
  const std::vector<Index> got_counts = workplace.fetch(counts);
  const std::vector<Index> got = workplace.fetch(indices);
  const std::vector<std::byte> got_values = workplace.fetch(values);
  bool right = true;
  for (std::size_t group = 0; right && group < expected.size(); ++group) {
    const Index first = static_cast<Index>(group) * room;
    right = got_counts[group] == std::ssize(expected[group]) && got_counts[group] <= room &&
            std::equal(expected[group].begin(), expected[group].end(), got.begin() + first);
    for (std::size_t i = 0; right && i < expected[group].size(); ++i) {
      right = dense.is_row(got_values.data() + (first + static_cast<Index>(i)) * dense.row_bytes(),
                           expected[group][i]);
    }
  }
  if (!right) state.SkipWithError("wrong groups");
  set_compact_rates(state, dense);
}

/// Uses the largest number of groups that the kernel for few groups accepts. Each group then has
/// the fewest threads for look-back.
void compact_many_groups(benchmark::State& state, DType dtype) {
  compact_groups_dtype(state, dtype, state.range(2));
}

void compact_groups_clustered(benchmark::State& state, DType dtype) {
  compact_groups_dtype(state, dtype, kGroups, state.range(2));
}

/// Runs compact, then Algorithm 1 of Zen: the baseline of compact with the bijection.
void compact_and_hash(benchmark::State& state) {
  const Dense dense(DType::f32, state.range(0), state.range(1));
  Workplace workplace(1);
  const ConstMatrix from = dense.place(workplace);
  const std::size_t found = dense.touched.size();
  const std::span<Index> indices = workplace.room<Index>(found);
  const std::span<std::byte> values =
      workplace.room<std::byte>(found * static_cast<std::size_t>(dense.row_bytes()));
  const std::span<Index> count = workplace.room<Index>(1);
  const RowHash hash(kGroups, kSeed + 1);
  HashMemory memory(workplace.context());
  const std::span<Index> parts = workplace.room<Index>(found);
  const std::span<Index> sources = workplace.room<Index>(found);
  const std::span<Index> begin = workplace.room<Index>(kGroups + 1);
  workplace.measure(state, [&] {
    compact(workplace.context(), from, 0, indices,
            {values.data(), dense.dtype, static_cast<Index>(found), dense.width},
            Count(count.data()));
    partition_by_hash(workplace.context(), hash, indices, parts, sources, begin, memory);
  });
  const std::vector<Index> got = workplace.fetch(parts);
  const std::vector<Index> begins = workplace.fetch(begin);
  bool right = begins.back() == static_cast<Index>(found);
  for (std::size_t part = 0; part + 1 < begins.size(); ++part) {
    for (Index i = begins[part]; right && i < begins[part + 1]; ++i) {
      right = hash.partition(got[static_cast<std::size_t>(i)]) == static_cast<Index>(part);
    }
  }
  if (!right) state.SkipWithError("a wrong partition");
  set_compact_rates(state, dense);
}

const bool kBaselines = add_baselines();
/// Runs of 512 correspond to the paper's LSTM, whose rows have 512 elements.
const auto kClustered = [](benchmark::internal::Benchmark* row) {
  row->ArgNames({"width", "per_mille", "run"})
      ->ArgsProduct({{1}, {52}, {1, 64, 512}})
      ->Apply(timed);
};
BENCHMARK_CAPTURE(compact_groups_clustered, f32, DType::f32)
    ->Name("compact_groups_clustered/f32")
    ->Apply(kClustered);
BENCHMARK_CAPTURE(compact_groups_clustered, bf16, DType::bf16)
    ->Name("compact_groups_clustered/bf16")
    ->Apply(kClustered);
BENCHMARK_CAPTURE(compact_clustered, f32, DType::f32)
    ->Name("compact_clustered/f32")
    ->Apply(kClustered);
BENCHMARK_CAPTURE(compact_clustered, bf16, DType::bf16)
    ->Name("compact_clustered/bf16")
    ->Apply(kClustered);
BENCHMARK(compact_rows)
    ->ArgNames({"width", "per_mille", "threads"})
    ->ArgsProduct({{1, 8, 32, 128}, {1, 10, 52, 100}, {1}})
    ->Apply(timed);
BENCHMARK_CAPTURE(compact_groups_dtype, f32, DType::f32)
    ->Name("compact_groups/f32")
    ->ArgNames({"width", "per_mille"})
    ->ArgsProduct({{1, 128}, {1, 10, 52}})
    ->Apply(timed);
BENCHMARK_CAPTURE(compact_groups_dtype, bf16, DType::bf16)
    ->Name("compact_groups/bf16")
    ->ArgNames({"width", "per_mille"})
    ->ArgsProduct({{1, 128}, {1, 10, 52}})
    ->Apply(timed);
const auto kManyGroups = [](benchmark::internal::Benchmark* row) {
  row->ArgNames({"width", "per_mille", "groups"})->ArgsProduct({{1}, {52}, {64}})->Apply(timed);
};
BENCHMARK_CAPTURE(compact_many_groups, f32, DType::f32)
    ->Name("compact_many_groups/f32")
    ->Apply(kManyGroups);
BENCHMARK_CAPTURE(compact_many_groups, bf16, DType::bf16)
    ->Name("compact_many_groups/bf16")
    ->Apply(kManyGroups);
BENCHMARK(compact_and_hash)
    ->ArgNames({"width", "per_mille"})
    ->ArgsProduct({{1, 128}, {10, 52}})
    ->Apply(timed);
const bool kThreads = of_cpu_alone([] {
  benchmark::RegisterBenchmark("compact_rows", compact_rows)
      ->ArgNames({"width", "per_mille", "threads"})
      ->ArgsProduct({{32, 128}, {10}, {2}})
      ->UseRealTime();
});

}  // namespace
}  // namespace sparsesync::bench
