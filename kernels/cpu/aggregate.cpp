// CPU bodies of unite and aggregate.
#include "kernels/aggregate.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/bits.h"
#include "kernels/rows.h"

namespace sparsesync::cpu {
namespace {

Index unite_by_address(IndexRange range, std::span<const std::span<const Index>> sets,
                       std::span<Index> out, Buffer<std::uint64_t>& buffer) {
  const std::span<std::uint64_t> words = buffer.reserve(ceil_div<Index>(range.size(), 64));
  std::fill(words.begin(), words.end(), std::uint64_t{0});
  for (const std::span<const Index> set : sets) {
    for (const Index index : set) {
      const auto bit = static_cast<std::uint64_t>(index - range.begin);
      words[bit / 64] |= std::uint64_t{1} << (bit % 64);
    }
  }
  std::size_t written = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t word = words[i]; word != 0; word &= word - 1) {
      out[written++] = range.begin + static_cast<Index>(i * 64) + std::countr_zero(word);
    }
  }
  return static_cast<Index>(written);
}

Index unite_by_merging(const Context& context, IndexRange range,
                       std::span<const std::span<const Index>> sets, std::span<Index> out,
                       Index total, AggregateWorkspace& workspace) {
  const std::span<Index> all = workspace.slots.reserve(total);
  std::size_t filled = 0;
  for (const std::span<const Index> set : sets) {
    for (const Index index : set) all[filled++] = index - range.begin;
  }
  sort_keys(context, all, range.size(), workspace.sort);
  const auto end = std::unique(all.begin(), all.end());
  std::transform(all.begin(), end, out.begin(), [&](Index index) { return index + range.begin; });
  return static_cast<Index>(end - all.begin());
}

/// For each of `indices` its place in `united`, both increasing: doubling steps from the last
/// place, then halving.
void find_places(std::span<const Index> united, std::span<const Index> indices,
                 std::span<Index> places) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::size_t step = 1;
    while (at + step < united.size() && united[at + step] < indices[i]) step *= 2;
    const auto begin = united.begin() + static_cast<std::ptrdiff_t>(at + step / 2);
    const auto end =
        united.begin() + static_cast<std::ptrdiff_t>(std::min(at + step + 1, united.size()));
    at = static_cast<std::size_t>(std::lower_bound(begin, end, indices[i]) - united.begin());
    SPARSESYNC_EXPECT(at, <, united.size());
    SPARSESYNC_EXPECT(united[at], ==, indices[i]);
    places[i] = static_cast<Index>(at);
  }
}

}  // namespace

void unite(const Context& context, IndexRange range, std::span<const std::span<const Index>> sets,
           std::span<Index> out, Count count, AggregateWorkspace& workspace) {
  Index total = 0;
  for (const std::span<const Index> set : sets) total += static_cast<Index>(set.size());
  SPARSESYNC_EXPECT(static_cast<Index>(out.size()), >=, std::min(total, range.size()));
  *count.location() = unites_by_address(range.size(), total)
                          ? unite_by_address(range, sets, out, workspace.words)
                          : unite_by_merging(context, range, sets, out, total, workspace);
}

void aggregate(const Context& context, std::span<const Index> united,
               std::span<const RowSparse> parts, double scale, Matrix out,
               AggregateWorkspace& workspace) {
  SPARSESYNC_EXPECT(out.rows, ==, static_cast<Index>(united.size()));
  Matrix sums{out.data, sum_dtype(out.dtype), out.rows, out.width};
  const bool in_place = sums.dtype == out.dtype;
  if (!in_place) sums.data = workspace.sums.reserve(sums.bytes()).data();
  fill_zero(context, {sums.data, static_cast<std::size_t>(sums.bytes())});
  for (const RowSparse& part : parts) {
    const std::span<Index> places =
        workspace.slots.reserve(static_cast<Index>(part.indices.size()));
    find_places(united, part.indices, places);
    add_rows(context, part.values, places, sums);
  }
  if (!in_place || scale != 1) round_sums(context, as_const(sums), scale, out);
}

}  // namespace sparsesync::cpu
