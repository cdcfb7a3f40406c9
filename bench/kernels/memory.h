// What the memory gives: a copy and STREAM's triad (McCalpin 1995), the yardsticks of the benches
// whose inputs lie outside the caches. They stand in the same executable as what is compared with
// them, so that both are measured in the same run.
#pragma once

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "bench/kernels/inputs.h"

namespace sparsesync::bench {

// Each array is many times the last cache.
constexpr Index kTriadElements = Index{1} << 25;

/// Bytes as STREAM counts them: what the program reads and writes, without the lines that a
/// processor reads before it writes to them.
inline void copy(benchmark::State& state) {
  const Index bytes = sized(kTriadElements * static_cast<Index>(sizeof(double)));
  const Host host(state.range(0));
  const std::vector<char> from(static_cast<std::size_t>(bytes), 1);
  std::vector<char> to(from.size());
  for ([[maybe_unused]] auto _ : state) {
    parallel_for(host.context(), bytes, 1, [&](IndexRange range) {
      std::memcpy(to.data() + range.begin, from.data() + range.begin,
                  static_cast<std::size_t>(range.size()));
    });
    benchmark::ClobberMemory();
  }
  if (to != from) state.SkipWithError("not a copy");
  set_rates(state, bytes, 2 * bytes);
}

/// Bytes as in copy().
inline void triad(benchmark::State& state) {
  const Index elements = sized(kTriadElements);
  const Host host(state.range(0));
  std::vector<double> a(static_cast<std::size_t>(elements));
  const std::vector<double> b(a.size(), 1);
  const std::vector<double> c(a.size(), 2);
  for ([[maybe_unused]] auto _ : state) {
    parallel_for(host.context(), elements, 1, [&](IndexRange range) {
      double* to = a.data();
      const double* left = b.data();
      const double* right = c.data();
      for (Index i = range.begin; i < range.end; ++i) to[i] = left[i] + 3.0 * right[i];
    });
    benchmark::ClobberMemory();
  }
  if (a != std::vector<double>(a.size(), 7)) state.SkipWithError("wrong sums");
  set_rates(state, elements, 3 * elements * static_cast<Index>(sizeof(double)));
}

}  // namespace sparsesync::bench
