// CPU implementations of unite() and aggregate().
#include "kernels/rows/aggregate.h"

#include <algorithm>
#include <bit>

#include "kernels/base/bits.h"
#include "kernels/base/dtype.h"
#include "kernels/base/threads.h"
#include "kernels/rows/rows.h"

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

/// Returns how many rows of the result to sum together. The block is small enough that its sums
/// stay in the inner caches while one part after another is added.
Index block_rows(Index row_bytes) {
  constexpr Index kBytes = Index{1} << 16;
  constexpr Index kMost = 2048;
  return std::clamp<Index>(kBytes / std::max<Index>(row_bytes, 1), 1, kMost);
}

/// Finds the positions of indices in a block of the union, without a binary search. The numbers
/// that the block spans are divided into equal ranges, several times as many as the block has rows.
/// A table holds the first row of each range.
class Places {
 public:
  /// Returns the number of table entries for a block of `rows` rows.
  static Index entries(Index rows) { return Index{1} << table_bits(rows); }

  /// @param united  a non-empty block of the union
  /// @param table   at least entries(united.size()) elements; overwritten
  Places(std::span<const Index> united, std::span<std::uint32_t> table)
      : united_(united), table_(table) {
    const auto span = static_cast<std::uint64_t>(united.back() - united.front()) + 1;
    shift_ =
        static_cast<unsigned>(std::max(bit_width_below(span) - table_bits(std::ssize(united)), 0));
    // An index outside the union finds entry 0 or another row's position. find() then detects that
    // it is missing.
    std::fill(table.begin(), table.end(), 0U);
    // Go backwards, so that the first row of a range remains.
    for (std::size_t place = united.size(); place-- > 0;) {
      table_[range_of(united[place])] = static_cast<std::uint32_t>(place);
    }
  }

  /// Writes the positions of `indices`, which increase, up to the first one past the block. Writes
  /// at most as many positions as the block has rows. If indices repeat, the rest remain for the
  /// next block, which rejects them.
  /// @return number of positions written
  std::size_t find(std::span<const Index> indices, std::span<Index> places) const {
    const Index last = united_.back();
    std::size_t at = 0;
    std::size_t i = 0;
    const std::size_t most = std::min(indices.size(), united_.size());
    for (; i < most && indices[i] <= last; ++i) {
      const Index index = indices[i];
      SPARSESYNC_EXPECT(index, >=, united_.front());
      at = std::max<std::size_t>(at, table_[range_of(index)]);
      while (united_[at] < index) ++at;
      SPARSESYNC_EXPECT(united_[at], ==, index);
      places[i] = static_cast<Index>(at);
    }
    return i;
  }

 private:
  /// Uses four to eight ranges per row, so that few ranges have two rows.
  static int table_bits(Index rows) {
    return bit_width_below(static_cast<std::uint64_t>(rows)) + 2;
  }
  std::size_t range_of(Index index) const {
    return static_cast<std::uint64_t>(index - united_.front()) >> shift_;
  }

  std::span<const Index> united_;
  std::span<std::uint32_t> table_;
  unsigned shift_;
};

/// One thread's share of the scratch memory.
struct BlockScratch {
  std::span<Index> next;    // per part: its first index that has not been added yet
  std::span<Index> places;  // per row of a block
  std::span<std::uint32_t> table;
  std::byte* sums;  // sums of a block; null if they are computed in the result
};

/// Sums the rows `range` of the result.
void aggregate_range(const Context& context, std::span<const Index> united, IndexRange range,
                     std::span<const RowSparse> parts, double scale, Matrix out,
                     const BlockScratch& scratch) {
  const auto united_size = std::ssize(united);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::span<const Index> indices = parts[p].indices;
    const auto first = range.begin == 0
                           ? indices.begin()
                           : std::upper_bound(indices.begin(), indices.end(),
                                              united[static_cast<std::size_t>(range.begin) - 1]);
    scratch.next[p] = first - indices.begin();
  }
  const auto block = std::ssize(scratch.places);
  for (Index begin = range.begin; begin < range.end; begin += block) {
    const IndexRange rows{begin, std::min(begin + block, range.end)};
    const Matrix to{out.data + begin * out.row_bytes(), out.dtype, rows.size(), out.width};
    const Matrix sums{scratch.sums == nullptr ? to.data : scratch.sums, sum_dtype(out.dtype),
                      to.rows, to.width};
    fill_zero(context, sums.as_bytes());
    const Places places(part_of(united, rows), scratch.table);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const RowSparse& part = parts[p];
      Index& next = scratch.next[p];
      const std::size_t found =
          places.find(part.indices.subspan(static_cast<std::size_t>(next)), scratch.places);
      const ConstMatrix values{part.values.data + next * part.values.row_bytes(), part.values.dtype,
                               static_cast<Index>(found), part.values.width};
      add_rows(context, values, scratch.places.first(found), sums);
      next += static_cast<Index>(found);
    }
    if (sums.data != to.data || scale != 1) round_sums(context, as_const(sums), scale, to);
  }
  if (range.end < united_size) return;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    // Otherwise some index is greater than all indices of the union.
    SPARSESYNC_EXPECT(scratch.next[p], ==, std::ssize(parts[p].indices));
  }
}

}  // namespace

void unite(const Context& context, IndexRange range, std::span<const std::span<const Index>> sets,
           std::span<Index> out, Count count, AggregateWorkspace& workspace) {
  Index total = 0;
  for (const std::span<const Index> set : sets) total += std::ssize(set);
  SPARSESYNC_EXPECT(std::ssize(out), >=, std::min(total, range.size()));
  *count.location() = unites_by_address(range.size(), total)
                          ? unite_by_address(range, sets, out, workspace.words)
                          : unite_by_merging(context, range, sets, out, total, workspace);
}

void aggregate(const Context& context, std::span<const Index> united,
               std::span<const RowSparse> parts, double scale, Matrix out,
               AggregateWorkspace& workspace) {
  SPARSESYNC_EXPECT(out.rows, ==, std::ssize(united));
  const Index row_bytes = out.width * element_bytes(sum_dtype(out.dtype));
  const Index block = std::min(block_rows(row_bytes), std::max<Index>(out.rows, 1));
  const bool in_place = sum_dtype(out.dtype) == out.dtype;
  const int threads = part_count(context, out.rows, block);
  const auto part_slots = std::ssize(parts);
  const std::span<Index> slots = workspace.slots.reserve(threads * (part_slots + block));
  const Index entries = Places::entries(block);
  const std::span<std::uint32_t> table = workspace.table.reserve(threads * entries);
  const std::span<std::byte> sums =
      workspace.sums.reserve(in_place ? 0 : threads * block * row_bytes);
  for_each_part(context, out.rows, threads, [&](int thread, IndexRange range) {
    const std::span<Index> own =
        part_of(slots, EvenRanges(std::ssize(slots), threads).range(thread));
    aggregate_range(context, united, range, parts, scale, out,
                    {own.first(parts.size()), own.subspan(parts.size()),
                     part_of(table, EvenRanges(threads * entries, threads).range(thread)),
                     in_place ? nullptr : sums.data() + thread * block * row_bytes});
  });
}

void aggregate_counted(const Context& context, std::span<const Index> united, Count count,
                       std::span<const RowSparse> parts, double scale, Matrix out,
                       AggregateWorkspace& workspace) {
  SPARSESYNC_EXPECT(out.rows, ==, std::ssize(united));
  SPARSESYNC_EXPECT(*count.location(), <=, out.rows);
  out.rows = *count.location();
  aggregate(context, part_of(united, {0, out.rows}), parts, scale, out, workspace);
}

}  // namespace sparsesync::cpu
