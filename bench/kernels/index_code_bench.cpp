// The index codes, and beside them Roaring bitmaps (CRoaring) of the same indices: bytes and speed.
#include "kernels/index_code.h"

#include <benchmark/benchmark.h>
#include <roaring/roaring.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/inputs.h"

namespace sparsesync::bench {
namespace {

/// Distinct rows, increasing: `count` of [0, rows).
struct Indices {
  Indices(Index rows, Index count) : range{0, rows}, all(distinct_rows(rows, sized(count))) {}
  IndexRange range;
  std::vector<Index> all;
};

Indices indices_of(const benchmark::State& state) {
  return {state.range(0), state.range(1)};
}

/// Bytes per second are of indices and code together; the other two counters are of the code.
void set_code_rates(benchmark::State& state, std::size_t count, std::size_t index_bytes,
                    std::size_t code_bytes) {
  set_rates(state, static_cast<Index>(count), static_cast<Index>(count * index_bytes + code_bytes));
  state.counters["code_bytes"] = static_cast<double>(code_bytes);
  state.counters["bits_per_index"] =
      static_cast<double>(code_bytes) * 8 / static_cast<double>(count);
}

/// @param code  all, bytes, encode() and decode(back): ours, or the other's
template <typename Code>
void measure_encode(benchmark::State& state, Code&& code) {
  for ([[maybe_unused]] auto _ : state) {
    code.encode();
    benchmark::ClobberMemory();
  }
  decltype(code.all) back(code.all.size());
  code.decode(back);
  if (back != code.all) state.SkipWithError("a wrong code");
  set_code_rates(state, back.size(), sizeof(back.front()), code.bytes.size());
}

template <typename Code>
void measure_decode(benchmark::State& state, Code&& code) {
  code.encode();
  decltype(code.all) back(code.all.size());
  for ([[maybe_unused]] auto _ : state) {
    code.decode(back);
    benchmark::ClobberMemory();
  }
  if (back != code.all) state.SkipWithError("wrong indices");
  set_code_rates(state, back.size(), sizeof(back.front()), code.bytes.size());
}

/// The indices, and bytes that hold them in one of our codes.
struct OurCode {
  OurCode(const Indices& indices, IndexCode index_code)
      : range(indices.range),
        code(index_code),
        all(indices.all),
        bytes(static_cast<std::size_t>(
            encoded_bytes(code, range.size(), static_cast<Index>(all.size())))) {}

  void encode() { sparsesync::encode(host.context(), code, range, all, bytes); }
  void decode(std::vector<Index>& back) const {
    sparsesync::decode(host.context(), code, range, bytes, back);
  }
  Host host{1};
  IndexRange range;
  IndexCode code;
  std::vector<Index> all;
  std::vector<std::byte> bytes;
};

void encode(benchmark::State& state, IndexCode code) {
  measure_encode(state, OurCode(indices_of(state), code));
}
void decode(benchmark::State& state, IndexCode code) {
  measure_decode(state, OurCode(indices_of(state), code));
}

struct FreeRoaring {
  void operator()(roaring_bitmap_t* bitmap) const { roaring_bitmap_free(bitmap); }
};
using Roaring = std::unique_ptr<roaring_bitmap_t, FreeRoaring>;

/// The indices as CRoaring takes them, and a string that holds their portable form.
struct RoaringCode {
  explicit RoaringCode(const Indices& indices) : all(indices.all.begin(), indices.all.end()) {}

  void encode() {
    const Roaring bitmap(roaring_bitmap_of_ptr(all.size(), all.data()));
    roaring_bitmap_run_optimize(bitmap.get());
    bytes.resize(roaring_bitmap_portable_size_in_bytes(bitmap.get()));
    roaring_bitmap_portable_serialize(bitmap.get(), bytes.data());
  }
  /// Into as many indices as there are; checks that the bytes suffice, not that indices increase.
  void decode(std::vector<std::uint32_t>& back) const {
    const Roaring bitmap(roaring_bitmap_portable_deserialize_safe(bytes.data(), bytes.size()));
    if (roaring_bitmap_get_cardinality(bitmap.get()) != back.size()) return;
    roaring_bitmap_to_uint32_array(bitmap.get(), back.data());
  }
  std::vector<std::uint32_t> all;
  std::string bytes;
};

/// From sorted 32-bit indices, as its interface has it: with the bitmap between them and the bytes.
void encode_roaring(benchmark::State& state) {
  measure_encode(state, RoaringCode(indices_of(state)));
}
void decode_roaring(benchmark::State& state) {
  measure_decode(state, RoaringCode(indices_of(state)));
}

/// A worker's share of many rows, half as dense as a bitmap pays, denser, and a small one that
/// stays in the nearest cache.
void densities(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "count"})
      ->Args({kRows, kCount})
      ->Args({Index{1} << 23, kCount})
      ->Args({Index{1} << 21, kCount})
      ->Args({793'471, 2560});
}

// CRoaring's indices have 32 bits; ours may have more: rows beyond 2^32 are measured without it.
void wide(benchmark::internal::Benchmark* bench) {
  densities(bench);
  bench->Args({Index{1} << 40, kCount});
}

BENCHMARK_CAPTURE(encode, coo, IndexCode::coo)->Apply(wide);
BENCHMARK_CAPTURE(encode, elias_fano, IndexCode::elias_fano)->Apply(wide);
BENCHMARK_CAPTURE(encode, bitmap, IndexCode::bitmap)->Apply(densities);
BENCHMARK(encode_roaring)->Apply(densities);
BENCHMARK_CAPTURE(decode, coo, IndexCode::coo)->Apply(wide);
BENCHMARK_CAPTURE(decode, elias_fano, IndexCode::elias_fano)->Apply(wide);
BENCHMARK_CAPTURE(decode, bitmap, IndexCode::bitmap)->Apply(densities);
BENCHMARK(decode_roaring)->Apply(densities);

}  // namespace
}  // namespace sparsesync::bench
