// Baselines for benchmarks whose inputs exceed the caches. On the CPU: a copy and STREAM's triad
// (McCalpin 1995). On a GPU: a copy and a plain kernel that reads. They are in the same executable
// as the benchmarks that are compared with them, so that both are measured in the same run.
#pragma once

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "kernels/base/threads.h"
#include "kernels/rows/rows.h"
#if defined(SPARSESYNC_WITH_CUDA)
#include "bench/kernels/read_reduce.h"
#endif

namespace sparsesync::bench {

// Each array is many times the last-level cache; on a GPU it is as long as the paper's tensor.
constexpr Index kTriadElements = Index{1} << 25;
constexpr Index kTensorElements = 214'000'000;

/// Counts bytes as STREAM does: those that the program reads and writes, without the cache lines
/// that a processor reads before it writes to them.
inline void copy(benchmark::State& state) {
  const Index bytes = sized((on_cuda() ? kTensorElements / 2 : kTriadElements) *
                            static_cast<Index>(sizeof(double)));
  Workplace workplace(state.range(0));
  const std::vector<std::byte> given(static_cast<std::size_t>(bytes), std::byte{1});
  const std::span<const std::byte> from = workplace.place(given);
  const std::span<std::byte> to = workplace.room<std::byte>(given.size());
  workplace.measure(state, [&] {
    if (on_cuda()) return sparsesync::copy(workplace.context(), from, to.data());
    parallel_for(workplace.context(), bytes, 1, [&](IndexRange range) {
      std::memcpy(to.data() + range.begin, from.data() + range.begin,
                  static_cast<std::size_t>(range.size()));
    });
  });
  if (workplace.fetch(to) != given) state.SkipWithError("not a copy");
  set_rates(state, bytes, 2 * bytes);
}

/// Counts bytes as copy() does. Runs on the CPU only.
inline void triad(benchmark::State& state) {
  const Index elements = sized(kTriadElements);
  Workplace workplace(state.range(0));
  std::vector<double> a(static_cast<std::size_t>(elements));
  const std::vector<double> b(a.size(), 1);
  const std::vector<double> c(a.size(), 2);
  workplace.measure(state, [&] {
    parallel_for(workplace.context(), elements, 1, [&](IndexRange range) {
      double* to = a.data();
      const double* left = b.data();
      const double* right = c.data();
      for (Index i = range.begin; i < range.end; ++i) to[i] = left[i] + 3.0 * right[i];
    });
  });
  if (a != std::vector<double>(a.size(), 7)) state.SkipWithError("wrong sums");
  set_rates(state, elements, 3 * elements * static_cast<Index>(sizeof(double)));
}

#if defined(SPARSESYNC_WITH_CUDA)
/// Counts each byte once, as read. Runs on a GPU only.
inline void read_reduce(benchmark::State& state) {
  const Index words = sized(kTensorElements) / 4 * 4;
  Workplace workplace(1);
  const std::vector<std::uint32_t> given(static_cast<std::size_t>(words), 3);
  const std::span<const std::uint32_t> from = workplace.place(given);
  const std::span<std::uint32_t> sum = workplace.room<std::uint32_t>(1);
  workplace.measure(state,
                    [&] { read_reduce(workplace.context(), std::as_bytes(from), sum.data()); });
  if (workplace.fetch(sum)[0] != static_cast<std::uint32_t>(3 * words)) {
    state.SkipWithError("a wrong sum");
  }
  set_rates(state, words, words * static_cast<Index>(sizeof(std::uint32_t)));
}
#endif

/// Registers the baselines of the measured device.
/// @return true, to initialize a constant with
inline bool add_baselines() {
#if defined(SPARSESYNC_WITH_CUDA)
  if (on_cuda()) {
    benchmark::RegisterBenchmark("copy", copy)->ArgName("threads")->Arg(1)->Apply(timed);
    benchmark::RegisterBenchmark("read_reduce",
                                 static_cast<void (*)(benchmark::State&)>(read_reduce))
        ->Apply(timed);
    return true;
  }
#endif
  benchmark::RegisterBenchmark("triad", triad)->ArgName("threads")->Arg(1);
  benchmark::RegisterBenchmark("triad", triad)->ArgName("threads")->Arg(2)->UseRealTime();
  return true;
}

}  // namespace sparsesync::bench
