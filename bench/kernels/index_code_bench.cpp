// Measures bytes and speed of the index codes, beside Roaring bitmaps (CRoaring) of the same
// indices.
#include "kernels/indices/index_code.h"

#include <benchmark/benchmark.h>
#include <roaring/roaring.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/device.h"
#include "bench/kernels/inputs.h"
#include "kernels/partition/hash_bitmap.h"

namespace sparsesync::bench {
namespace {

/// `count` distinct, increasing rows of [0, rows).
struct Indices {
  Indices(Index rows, Index count) : range{0, rows}, all(distinct_rows(rows, sized(count))) {}
  IndexRange range;
  std::vector<Index> all;
};

Indices indices_of(const benchmark::State& state) {
  return {state.range(0), state.range(1)};
}

/// Bytes per second count indices and code together; the other two counters only count the code.
void set_code_rates(benchmark::State& state, std::size_t count, std::size_t index_bytes,
                    std::size_t code_bytes) {
  set_rates(state, static_cast<Index>(count), static_cast<Index>(count * index_bytes + code_bytes));
  state.counters["code_bytes"] = static_cast<double>(code_bytes);
  state.counters["bits_per_index"] =
      static_cast<double>(code_bytes) * 8 / static_cast<double>(count);
}

/// The indices and one of our codes of them, on the measured device.
struct OurCode {
  OurCode(const Indices& indices, IndexCode index_code)
      : range(indices.range),
        code(index_code),
        all(indices.all),
        placed(workplace.place(all)),
        back(workplace.room<Index>(all.size())),
        bytes(workplace.room<std::byte>(static_cast<std::size_t>(
            encoded_bytes(code, range.size(), static_cast<Index>(all.size()))))) {}

  void encode() const { sparsesync::encode(workplace.context(), code, range, placed, bytes); }
  void decode() const { sparsesync::decode(workplace.context(), code, range, bytes, back); }
  bool is_right() const { return workplace.fetch(back) == all; }

  Workplace workplace{1};
  IndexRange range;
  IndexCode code;
  std::vector<Index> all;
  std::span<Index> placed;
  std::span<Index> back;
  std::span<std::byte> bytes;
};

void encode(benchmark::State& state, IndexCode code) {
  OurCode own(indices_of(state), code);
  own.workplace.measure(state, [&] { own.encode(); });
  own.decode();
  if (!own.is_right()) state.SkipWithError("a wrong code");
  set_code_rates(state, own.all.size(), sizeof(Index), own.bytes.size());
}
void decode(benchmark::State& state, IndexCode code) {
  OurCode own(indices_of(state), code);
  own.encode();
  own.workplace.measure(state, [&] { own.decode(); });
  if (!own.is_right()) state.SkipWithError("wrong indices");
  set_code_rates(state, own.all.size(), sizeof(Index), own.bytes.size());
}

/// Zen's bitmap of a server's domain (Algorithm 2): converts rows to positions and bits, and back.
struct HashBitmap {
  explicit HashBitmap(const benchmark::State& state)
      : rows(state.range(0)), hash(kGroups, kSeed + 1), domains(workplace.context()) {
    build_domains(workplace.context(), hash, rows, domains);
    for (const Index row : distinct_rows(rows, sized(state.range(1)))) {
      if (hash.partition(row) == 0) all.push_back(row);
    }
    placed = workplace.place(all);
    positions = workplace.room<Index>(all.size());
    back = workplace.room<Index>(all.size());
    bytes = workplace.room<std::byte>(static_cast<std::size_t>(
        encoded_bytes(IndexCode::bitmap, domains.size(0), static_cast<Index>(all.size()))));
  }

  void encode() const {
    positions_in_domain(workplace.context(), domains, 0, placed, positions);
    sparsesync::encode(workplace.context(), IndexCode::bitmap, {0, domains.size(0)}, positions,
                       bytes);
  }
  void decode() const {
    sparsesync::decode(workplace.context(), IndexCode::bitmap, {0, domains.size(0)}, bytes,
                       positions);
    rows_in_domain(workplace.context(), domains, 0, positions, back);
  }
  bool is_right() const { return workplace.fetch(back) == all; }

  static constexpr Index kGroups = 16;
  Workplace workplace{1};
  Index rows;
  RowHash hash;
  HashDomains domains;
  std::vector<Index> all;
  std::span<Index> placed;
  std::span<Index> positions;
  std::span<Index> back;
  std::span<std::byte> bytes;
};

void encode_hash_bitmap(benchmark::State& state) {
  HashBitmap own(state);
  own.workplace.measure(state, [&] { own.encode(); });
  own.decode();
  if (!own.is_right()) state.SkipWithError("a wrong code");
  set_code_rates(state, own.all.size(), sizeof(Index), own.bytes.size());
}
void decode_hash_bitmap(benchmark::State& state) {
  HashBitmap own(state);
  own.encode();
  own.workplace.measure(state, [&] { own.decode(); });
  if (!own.is_right()) state.SkipWithError("wrong indices");
  set_code_rates(state, own.all.size(), sizeof(Index), own.bytes.size());
}

struct FreeRoaring {
  void operator()(roaring_bitmap_t* bitmap) const { roaring_bitmap_free(bitmap); }
};
using Roaring = std::unique_ptr<roaring_bitmap_t, FreeRoaring>;

/// The indices as CRoaring expects them, and a string with their portable serialization.
struct RoaringCode {
  explicit RoaringCode(const Indices& indices) : all(indices.all.begin(), indices.all.end()) {}

  void encode() {
    const Roaring bitmap(roaring_bitmap_of_ptr(all.size(), all.data()));
    roaring_bitmap_run_optimize(bitmap.get());
    bytes.resize(roaring_bitmap_portable_size_in_bytes(bitmap.get()));
    roaring_bitmap_portable_serialize(bitmap.get(), bytes.data());
  }
  /// Decodes into `back`, which must have the right size. Checks the length of the bytes, but not
  /// that the indices increase.
  void decode(std::vector<std::uint32_t>& back) const {
    const Roaring bitmap(roaring_bitmap_portable_deserialize_safe(bytes.data(), bytes.size()));
    if (roaring_bitmap_get_cardinality(bitmap.get()) != back.size()) return;
    roaring_bitmap_to_uint32_array(bitmap.get(), back.data());
  }
  std::vector<std::uint32_t> all;
  std::string bytes;
};

/// Encodes sorted 32-bit indices through CRoaring's interface, which builds a bitmap before it
/// writes bytes.
void encode_roaring(benchmark::State& state) {
  RoaringCode code(indices_of(state));
  for ([[maybe_unused]] auto _ : state) {
    code.encode();
    benchmark::ClobberMemory();
  }
  std::vector<std::uint32_t> back(code.all.size());
  code.decode(back);
  if (back != code.all) state.SkipWithError("a wrong code");
  set_code_rates(state, back.size(), sizeof(back.front()), code.bytes.size());
}
void decode_roaring(benchmark::State& state) {
  RoaringCode code(indices_of(state));
  code.encode();
  std::vector<std::uint32_t> back(code.all.size());
  for ([[maybe_unused]] auto _ : state) {
    code.decode(back);
    benchmark::ClobberMemory();
  }
  if (back != code.all) state.SkipWithError("wrong indices");
  set_code_rates(state, back.size(), sizeof(back.front()), code.bytes.size());
}

/// Four densities: a worker's share of many rows, half the density at which a bitmap pays off, a
/// higher density, and a small set that stays in the L1 cache. On a GPU two rows with sixteen times
/// as many indices keep the device busy.
void densities(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "count"})
      ->Args({kRows, kCount})
      ->Args({Index{1} << 23, kCount})
      ->Args({Index{1} << 21, kCount})
      ->Args({793'471, 2560});
  if (on_cuda()) bench->Args({16 * kRows, 16 * kCount})->Args({Index{1} << 27, 16 * kCount});
  timed(bench);
}

// CRoaring's indices have 32 bits, and ours may have more. Rows beyond 2^32 are measured without
// CRoaring.
void wide(benchmark::internal::Benchmark* bench) {
  densities(bench);
  bench->Args({Index{1} << 40, kCount});
}

/// Domains take 4 bytes per row.
void domains(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "count"})->Args({sized(Index{1} << 26), Index{1} << 24});
  timed(bench);
}

BENCHMARK_CAPTURE(encode, coo, IndexCode::coo)->Apply(wide);
BENCHMARK_CAPTURE(encode, elias_fano, IndexCode::elias_fano)->Apply(wide);
BENCHMARK_CAPTURE(encode, bitmap, IndexCode::bitmap)->Apply(densities);
BENCHMARK(encode_hash_bitmap)->Apply(domains);
BENCHMARK_CAPTURE(decode, coo, IndexCode::coo)->Apply(wide);
BENCHMARK_CAPTURE(decode, elias_fano, IndexCode::elias_fano)->Apply(wide);
BENCHMARK_CAPTURE(decode, bitmap, IndexCode::bitmap)->Apply(densities);
BENCHMARK(decode_hash_bitmap)->Apply(domains);
const bool kRoaring = of_cpu_alone([] {
  benchmark::RegisterBenchmark("encode_roaring", encode_roaring)->Apply(densities);
  benchmark::RegisterBenchmark("decode_roaring", decode_roaring)->Apply(densities);
});

}  // namespace
}  // namespace sparsesync::bench
