// Inputs of the kernel benchmarks, and the rates that they report.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/partition/bijection.h"

namespace sparsesync::bench {

constexpr std::uint64_t kSeed = 20'240'607;
constexpr Index kRows = 100'000'007;
constexpr Index kCount = Index{1} << 20;

/// Whether every size is small, because the benchmarks only run as a test (bench/smoke.sh).
inline bool is_small() {
  return std::getenv("SPARSESYNC_BENCH_SMALL") != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

/// Returns `size`, or a small part of it if is_small().
inline Index sized(Index size) {
  return is_small() ? std::max<Index>(size >> 10, 1) : size;
}

/// Returns `count` distinct, increasing rows of [0, rows): the images of 0, 1, ... under a
/// bijection.
inline std::vector<Index> distinct_rows(Index rows, Index count, std::uint64_t seed = kSeed) {
  const Bijection bijection(rows, seed);
  std::vector<Index> chosen(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    chosen[i] = bijection.forward(static_cast<Index>(i));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

/// Returns the element that every worker has at this row and column. It is a whole number from 1 to
/// 8, so that sums of many are exact in any order.
constexpr float value_at(Index row, Index column) {
  return static_cast<float>((row * 3 + column) % 8 + 1);
}

/// Returns value_at() for the rows.
inline std::vector<float> values_of(std::span<const Index> rows, Index width) {
  std::vector<float> values(rows.size() * static_cast<std::size_t>(width));
  auto to = values.begin();
  for (const Index row : rows) {
    for (Index column = 0; column < width; ++column) *to++ = value_at(row, column);
  }
  return values;
}

inline Matrix matrix_of(std::span<float> values, Index width) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::f32,
          static_cast<Index>(values.size()) / width, width};
}

/// Reports items/s and bytes/s, from the items and bytes of one iteration. With one thread the
/// rates use CPU time, which other load on the machine disturbs less. With several threads they use
/// wall-clock time (UseRealTime).
inline void set_rates(benchmark::State& state, Index items, Index bytes) {
  state.SetItemsProcessed(state.iterations() * items);
  state.SetBytesProcessed(state.iterations() * bytes);
}

}  // namespace sparsesync::bench
