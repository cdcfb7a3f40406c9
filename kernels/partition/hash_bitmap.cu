// CUDA implementations of hash bitmap domains.
#include "kernels/partition/hash_bitmap.h"

#include "kernels/base/error.h"
#include "kernels/cuda/divider.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/select.h"

namespace sparsesync::cuda {
namespace {

/// Items per thread in a tile of rows. There are many, because each partition scans all tiles, and
/// each tile takes a word of memory.
constexpr int kTileItems = 64;
constexpr Index kTile = kSelectTile<kTileItems>;

using Divider64 = Divider<std::uint64_t>;

/// Selection that scans all rows once per partition, partition after partition, and keeps the rows
/// of that partition.
template <typename Stored>
struct RowsOfPartition {
  /// State of a tile.
  struct Part {
    std::uint64_t partition;
    Index first_row;
  };

  RowHash hash;
  Index rows;
  Divider64 by_partitions;
  Index tiles;  // per partition
  Divider64 by_tiles;
  Stored* entries;
  Index* begin;  // start of each partition; that of the first one is 0

  __device__ Part part(Index tile) const {
    const auto at = by_tiles.divide(static_cast<std::uint64_t>(tile));
    return {at.quotient, static_cast<Index>(at.remainder) * kTile};
  }
  __device__ bool keeps(const Part& of, Index item) const {
    const Index row = of.first_row + item;
    return row < rows && by_partitions.divide(hash.mixed(0, row)).remainder == of.partition;
  }
  __device__ void put(const Part& of, Index item, Index rank) const {
    entries[rank] = static_cast<Stored>(of.first_row + item);
  }
  __device__ void end(Index tile, Index kept) const {
    const Part of = part(tile);
    if (of.first_row + kTile >= rows) begin[of.partition + 1] = kept;
  }
};

template <typename Stored>
void build(const Context& context, const RowHash& hash, std::span<Stored> entries,
           std::span<Index> begin) {
  const auto rows = std::ssize(entries);
  const Index partitions = hash.partitions();
  Scratch scratch(context);
  const std::span<Index> found = scratch.allocate<Index>(std::ssize(begin));
  clear(context, found.data(), found.size_bytes());
  const Index tiles = ceil_div(rows, kTile);
  select<kTileItems>(
      context, partitions * tiles, fresh_tiles(context, scratch, partitions * tiles),
      RowsOfPartition<Stored>{hash, rows, Divider64(static_cast<std::uint64_t>(partitions)), tiles,
                              Divider64(static_cast<std::uint64_t>(tiles)), entries.data(),
                              found.data()});
  stream_of(context).download(std::as_bytes(found), std::as_writable_bytes(begin).data());
}

/// The domain of a partition, for kernels.
template <typename Stored>
struct Domain {
  const Stored* entries;
  Index size;
};

template <typename Stored>
Domain<Stored> domain_of(const Buffer<Stored>& entries, const HashDomains& domains,
                         Index partition) {
  return {entries.data() + domains.begin[static_cast<std::size_t>(partition)],
          domains.size(partition)};
}

/// Calls `body` with the domain of a partition.
template <typename Body>
void with_domain(const HashDomains& domains, Index partition, Body&& body) {
  if (domain_entry_bytes(domains.begin.back()) == 4) {
    return body(domain_of(domains.narrow, domains, partition));
  }
  body(domain_of(domains.wide, domains, partition));
}

template <typename Stored>
void find_positions(const Context& context, Domain<Stored> domain, std::span<const Index> rows,
                    Index* positions) {
  const Index* const from = rows.data();
  FaultWord* const faults = stream_of(context).faults();
  for_each(context, std::ssize(rows), [=] __device__(Index i) {
    const auto row = static_cast<std::uint64_t>(from[i]);
    const Index position = lower_bound(domain.entries, domain.size, row);
    const bool found = position < domain.size && domain.entries[position] == row;
    const bool in_order = i == 0 || static_cast<std::uint64_t>(from[i - 1]) <= row;
    if (!found || !in_order) record_fault(faults, Fault::row_of_another);
    // Stay inside the domain: there is no position after the last one.
    positions[i] = found || position == 0 ? position : position - 1;
  });
}

template <typename Stored>
void find_rows(const Context& context, Domain<Stored> domain, std::span<const Index> positions,
               Index* rows) {
  const Index* const from = positions.data();
  for_each(context, std::ssize(positions), [=] __device__(Index i) {
    const Index position = from[i];
    rows[i] =
        position >= 0 && position < domain.size ? static_cast<Index>(domain.entries[position]) : 0;
  });
}

/// Counts, for each partition, the rows of its domain that are below rows[i]: places[partition *
/// count + i].
template <typename Stored>
void count_rows(const Context& context, const Stored* entries, std::span<const Index> begin,
                std::span<const Index> rows, Index* places) {
  const Index* const begin_of = begin.data();
  const Index* const bounds = rows.data();
  const Index count = std::ssize(rows);
  for_each_of_rows(context, std::ssize(begin) - 1, count, [=] __device__(Index partition, Index i) {
    const Index first = begin_of[partition];
    places[partition * count + i] = lower_bound(entries + first, begin_of[partition + 1] - first,
                                                static_cast<std::uint64_t>(bounds[i]));
  });
}

}  // namespace

void build_domains(const Context& context, const RowHash& hash, Index rows, HashDomains& domains) {
  // Allocate first, so that a budget error precedes the work.
  const bool narrow = domain_entry_bytes(rows) == 4;
  const auto narrow_entries = domains.narrow.reserve_exactly(narrow ? rows : 0);
  const auto wide_entries = domains.wide.reserve_exactly(narrow ? 0 : rows);
  domains.begin.assign(static_cast<std::size_t>(hash.partitions()) + 1, 0);
  if (narrow) {
    build(context, hash, narrow_entries, domains.begin);
  } else {
    build(context, hash, wide_entries, domains.begin);
  }
}

void positions_in_domain(const Context& context, const HashDomains& domains, Index partition,
                         std::span<const Index> rows, std::span<Index> positions) {
  SPARSESYNC_EXPECT(rows.size(), ==, positions.size());
  with_domain(domains, partition,
              [&](const auto& domain) { find_positions(context, domain, rows, positions.data()); });
}

void rows_in_domain(const Context& context, const HashDomains& domains, Index partition,
                    std::span<const Index> positions, std::span<Index> rows) {
  SPARSESYNC_EXPECT(rows.size(), ==, positions.size());
  with_domain(domains, partition,
              [&](const auto& domain) { find_rows(context, domain, positions, rows.data()); });
}

void count_below(const Context& context, const HashDomains& domains, std::span<const Index> rows,
                 std::span<Index> places) {
  SPARSESYNC_EXPECT(places.size(), ==, (domains.begin.size() - 1) * rows.size());
  Scratch scratch(context);
  const std::span<const Index> begin = scratch.upload(std::span<const Index>(domains.begin));
  const std::span<const Index> bounds = scratch.upload(rows);
  const std::span<Index> found = scratch.allocate<Index>(std::ssize(places));
  if (domain_entry_bytes(domains.begin.back()) == 4) {
    count_rows(context, domains.narrow.data(), begin, bounds, found.data());
  } else {
    count_rows(context, domains.wide.data(), begin, bounds, found.data());
  }
  stream_of(context).download(std::as_bytes(found), std::as_writable_bytes(places).data());
}

}  // namespace sparsesync::cuda
