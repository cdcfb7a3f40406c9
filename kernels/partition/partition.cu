// CUDA implementations of partition() and its inverse.
#include "kernels/partition/partition.h"

#include "kernels/base/error.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/job_table.h"
#include "kernels/cuda/launch.h"
#include "kernels/partition/sort_keys.cuh"

namespace sparsesync::cuda {
namespace {

/// A (group, position) pair as one number, in the same order.
struct PlaceKey {
  explicit PlaceKey(const RowGroups& groups)
      : position_bits(bit_width_below(static_cast<std::uint64_t>(groups.universe()))),
        bits(bit_width_below(static_cast<std::uint64_t>(groups.groups())) + position_bits) {}

  __device__ std::uint64_t of(RowGroups::Place place) const {
    return static_cast<std::uint64_t>(place.group) << static_cast<unsigned>(position_bits) |
           static_cast<std::uint64_t>(place.position);
  }
  __device__ Index group(Index key) const { return key >> position_bits; }
  __device__ Index position(Index key) const {
    return static_cast<Index>(static_cast<std::uint64_t>(key) & low_mask(position_bits));
  }

  int position_bits;
  int bits;
};

/// Sets words[i] to the key of rows[i], above i in the lowest `place_bits` bits.
template <typename Word>
void pack(const Context& context, const Places<Word>& places, PlaceKey key,
          std::span<const Index> rows, int place_bits, std::uint64_t* words) {
  const Index* const from = rows.data();
  for_each(context, std::ssize(rows), [=] __device__(Index i) {
    words[i] = key.of(places.locate(from[i])) << static_cast<unsigned>(place_bits) |
               static_cast<std::uint64_t>(i);
  });
}

/// Sets keys[i] to the key of rows[i].
template <typename Word>
void find_keys(const Context& context, const Places<Word>& places, PlaceKey key,
               std::span<const Index> rows, Index* keys) {
  const Index* const from = rows.data();
  for_each(context, std::ssize(rows), [=] __device__(Index i) {
    keys[i] = static_cast<Index>(key.of(places.locate(from[i])));
  });
}

SortedWords sort_rows(const Context& context, Scratch& scratch, const RowGroups& groups,
                      PlaceKey key, std::span<const Index> rows) {
  const auto size = std::ssize(rows);
  if (!fit_into_word(key.bits, size)) {
    const std::span<Index> keys = scratch.allocate<Index>(size);
    with_places(groups,
                [&](const auto& places) { find_keys(context, places, key, rows, keys.data()); });
    return sort_by_key(context, scratch, keys, key.bits);
  }
  const int place_bits = place_bits_of(size);
  const std::span<std::uint64_t> words = scratch.allocate<std::uint64_t>(size);
  with_places(groups, [&](const auto& places) {
    pack(context, places, key, rows, place_bits, words.data());
  });
  return {sort_words(context, scratch, words, place_bits, place_bits + key.bits).data(), place_bits,
          nullptr};
}

/// Positions of a group.
struct FindWork {
  const Index* positions;
  Index* rows;
  Index residue;
  Index held;        // rows of the group
  Index first_tile;  // a tile is a position
};

template <typename Word>
__global__ void find_rows(const __grid_constant__ JobTable<FindWork> table, Places<Word> places,
                          FaultWord* faults) {
  for (Index all = thread_number(); all < table.tiles(); all += thread_count()) {
    const FindWork& work = table.of(all);
    const Index i = all - work.first_tile;
    const Index position = work.positions[i];
    // Compare as unsigned numbers, so that a negative position is too large.
    const bool holds = static_cast<std::uint64_t>(position) < static_cast<std::uint64_t>(work.held);
    if (!holds) record_fault(faults, Fault::no_row_there);
    work.rows[i] = places.row(static_cast<Word>(work.residue), holds ? position : 0);
  }
}

template <typename Word>
void find_groups_of(const Context& context, const Places<Word>& places, std::span<const Index> rows,
                    std::int32_t* groups_of) {
  const Index* const from = rows.data();
  for_each(context, std::ssize(rows), [=] __device__(Index i) {
    groups_of[i] = static_cast<std::int32_t>(places.locate(from[i]).group);
  });
}

/// EvenRanges, for kernels.
struct RangesOfRows {
  explicit RangesOfRows(const EvenRanges& ranges)
      : last(ranges.parts() - 1),
        shorter(ranges.range(last).size()),
        longer_count(ranges.range(last).end - ranges.parts() * shorter),
        shorter_from(longer_count * (shorter + 1)),
        by_longer(static_cast<std::uint64_t>(shorter + 1)),
        by_shorter(static_cast<std::uint64_t>(shorter)) {}

  /// Computes EvenRanges::part_of(). For an invalid row, returns any valid part.
  __device__ Index part_of(Index row) const {
    const Index part = row < shorter_from ? quotient(by_longer, row)
                                          : longer_count + quotient(by_shorter, row - shorter_from);
    return part >= 0 && part < last ? part : last;
  }
  __device__ Index begin(Index part) const {
    return part * shorter + (part < longer_count ? part : longer_count);
  }

  __device__ static Index quotient(const Divider<std::uint64_t>& by, Index number) {
    return static_cast<Index>(by.divide(static_cast<std::uint64_t>(number)).quotient);
  }

  Index last;          // last part
  Index shorter;       // rows per shorter part; the longer parts come first and have one more
  Index longer_count;  // number of longer parts
  Index shorter_from;  // first row of the shorter parts
  Divider<std::uint64_t> by_longer;
  Divider<std::uint64_t> by_shorter;
};

}  // namespace

void partition(const Context& context, const RowGroups& groups, std::span<const Index> rows,
               std::span<Index> positions, std::span<Index> sources, std::span<Index> group_begin,
               SortWorkspace&) {
  SPARSESYNC_EXPECT(std::ssize(group_begin), ==, groups.groups() + 1);
  SPARSESYNC_EXPECT(positions.size(), ==, rows.size());
  SPARSESYNC_EXPECT(sources.size(), ==, rows.size());
  if (rows.empty()) return clear(context, group_begin.data(), group_begin.size_bytes());
  const auto size = std::ssize(rows);
  const PlaceKey place_key(groups);
  Scratch scratch(context);
  const SortedWords sorted = sort_rows(context, scratch, groups, place_key, rows);
  Index* const position_of = positions.data();
  Index* const source_of = sources.data();
  Index* const begin = group_begin.data();
  const Index group_count = groups.groups();
  for_each(context, size, [=] __device__(Index i) {
    const Index key = sorted.key(i);
    position_of[i] = place_key.position(key);
    source_of[i] = sorted.source(i);
    const Index before = i == 0 ? 0 : place_key.group(sorted.key(i - 1));
    write_begins(i, size, before, place_key.group(key), group_count, begin);
  });
}

void rows_at_all(const Context& context, const RowGroups& groups,
                 std::span<const PositionsJob> jobs) {
  const auto add_to = [&](JobTable<FindWork>& table, const PositionsJob& job) {
    SPARSESYNC_EXPECT(job.positions.size(), ==, job.rows.size());
    if (job.rows.empty()) return;
    table.add({job.positions.data(), job.rows.data(), groups.residue(job.group),
               groups.size(job.group), 0},
              std::ssize(job.rows));
  };
  for_tables<FindWork>(jobs, add_to, [&](const JobTable<FindWork>& table) {
    with_places(groups, [&]<typename Word>(const Places<Word>& places) {
      launch<find_rows<Word>>(context, blocks_for(context, table.tiles()), kBlock, table, places,
                              stream_of(context).faults());
    });
  });
}

void rows_at(const Context& context, const RowGroups& groups, Index group,
             std::span<const Index> positions, std::span<Index> rows) {
  const PositionsJob job{group, positions, rows};
  rows_at_all(context, groups, {&job, 1});
}

void find_groups(const Context& context, const RowGroups& groups, std::span<const Index> rows,
                 std::span<std::int32_t> groups_of) {
  SPARSESYNC_EXPECT(groups_of.size(), ==, rows.size());
  with_places(groups,
              [&](const auto& places) { find_groups_of(context, places, rows, groups_of.data()); });
}

void divide_evenly(const Context& context, const EvenRanges& ranges, std::span<const Index> rows,
                   std::span<Index> indices, std::span<Index> range_begin) {
  SPARSESYNC_EXPECT(indices.size(), ==, rows.size());
  SPARSESYNC_EXPECT(std::ssize(range_begin), ==, ranges.parts() + 1);
  if (rows.empty()) return clear(context, range_begin.data(), range_begin.size_bytes());
  const RangesOfRows by(ranges);
  const auto size = std::ssize(rows);
  const Index parts = ranges.parts();
  const Index* const from = rows.data();
  Index* const to = indices.data();
  Index* const begin = range_begin.data();
  for_each(context, size, [=] __device__(Index i) {
    const Index part = by.part_of(from[i]);
    to[i] = from[i] - by.begin(part);
    write_begins(i, size, i == 0 ? 0 : by.part_of(from[i - 1]), part, parts, begin);
  });
}

}  // namespace sparsesync::cuda
