// The domains of a hash bitmap (Zen, OSDI 2025, Algorithm 2): the rows that belong to each
// partition, known to all workers in advance.
//
// A hash bitmap is the bitmap index code (index_code.h) of positions in a domain: one bit for each
// row of the domain. So the n bitmaps of all partitions take R bits together, where plain bitmaps
// would take n · R.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/index_code.h"
#include "kernels/partition/hash.h"

namespace sparsesync {

/// I_j = the rows of [0, R) with h0(row) = j, increasing, for each partition j. Positions count
/// from 0 in each. Entries of 4 bytes where they can name every row, else of 8.
struct HashDomains {
  explicit HashDomains(const Context& context) : narrow(context), wide(context) {}

  Buffer<std::uint32_t> narrow;  // domain after domain; this one or
  Buffer<std::uint64_t> wide;    // this one
  std::vector<Index> begin;      // of each domain in it, on the host; partitions + 1 numbers

  /// Rows of a partition's domain.
  Index size(Index partition) const {
    return begin[static_cast<std::size_t>(partition) + 1] -
           begin[static_cast<std::size_t>(partition)];
  }
};

/// Bytes of an entry, as of a COO index.
constexpr Index domain_entry_bytes(Index rows) {
  return coo_index_bytes(rows);
}

namespace cpu {
/// Builds the domains of [0, rows). Once, when a bucket is registered. Synchronizes the stream.
/// @throws BudgetError if `rows` entries don't fit
void build_domains(const Context& context, const RowHash& hash, Index rows, HashDomains& domains);

/// positions[i] = where rows[i] stands in the partition's domain. Does not synchronize the stream.
/// @param rows  increasing, all of this partition
/// @throws CorruptDataError if a row is not of this partition: rows come from the network
void positions_in_domain(const Context& context, const HashDomains& domains, Index partition,
                         std::span<const Index> rows, std::span<Index> positions);

/// rows[i] = the row at positions[i] of the partition's domain. Does not synchronize the stream.
/// @param positions  in [0, domains.size(partition)) (undefined otherwise)
void rows_in_domain(const Context& context, const HashDomains& domains, Index partition,
                    std::span<const Index> positions, std::span<Index> rows);

/// places[partition · rows.size() + i] = how many rows of the partition's domain are below rows[i]:
/// the rows of a range have the positions between the places of its begin and its end. Once, for
/// ranges that are known in advance. Synchronizes the stream.
/// @param rows    on the host, as `places`
/// @param places  partitions · rows.size() of them
void count_below(const Context& context, const HashDomains& domains, std::span<const Index> rows,
                 std::span<Index> places);
}  // namespace cpu

SPARSESYNC_OPERATION(build_domains);
SPARSESYNC_OPERATION(positions_in_domain);
SPARSESYNC_OPERATION(rows_in_domain);
SPARSESYNC_OPERATION(count_below);

}  // namespace sparsesync
