// The domains of a hash bitmap (Zen, OSDI 2025, Algorithm 2): the rows of each partition, which all
// workers know in advance.
//
// A hash bitmap is the bitmap index code (index_code.h) for positions in a domain, with one bit per
// row of the domain. The n bitmaps of all partitions thus take R bits together, while plain bitmaps
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

/// The domains of all partitions. Domain I_j has the rows of [0, R) with h0(row) = j, in increasing
/// order; positions count from 0 in each domain. Entries have 4 bytes if these can represent every
/// row, otherwise 8.
struct HashDomains {
  explicit HashDomains(const Context& context) : narrow(context), wide(context) {}

  Buffer<std::uint32_t> narrow;  // all domains, concatenated, if entries have 4 bytes
  Buffer<std::uint64_t> wide;    // the same, if entries have 8 bytes
  std::vector<Index> begin;      // start of each domain, on the host; partitions + 1 numbers

  /// Returns the number of rows in a partition's domain.
  Index size(Index partition) const {
    return begin[static_cast<std::size_t>(partition) + 1] -
           begin[static_cast<std::size_t>(partition)];
  }
};

/// Returns the bytes per entry, which equal those of a COO index.
constexpr Index domain_entry_bytes(Index rows) {
  return coo_index_bytes(rows);
}

namespace cpu {
/// Builds the domains of [0, rows). Called once, when a bucket is registered. Synchronizes the
/// stream.
/// @throws BudgetError if `rows` entries exceed the budget
void build_domains(const Context& context, const RowHash& hash, Index rows, HashDomains& domains);

/// Finds the position of each row in the partition's domain. Does not synchronize the stream.
/// @param rows  increasing, all in this partition
/// @throws CorruptDataError if a row is not in this partition, because rows come from the network
void positions_in_domain(const Context& context, const HashDomains& domains, Index partition,
                         std::span<const Index> rows, std::span<Index> positions);

/// Finds the row at each position of the partition's domain. Does not synchronize the stream.
/// @param positions  in [0, domains.size(partition)) (otherwise undefined)
void rows_in_domain(const Context& context, const HashDomains& domains, Index partition,
                    std::span<const Index> positions, std::span<Index> rows);

/// Counts the rows of each domain that are below each of `rows`: places[partition · rows.size() +
/// i] for rows[i]. The rows of a range then have the positions between the counts for its begin and
/// its end. Called once, for ranges that are known in advance. Synchronizes the stream.
/// @param rows    on the host
/// @param places  partitions · rows.size() elements, on the host
void count_below(const Context& context, const HashDomains& domains, std::span<const Index> rows,
                 std::span<Index> places);
}  // namespace cpu

SPARSESYNC_OPERATION(build_domains);
SPARSESYNC_OPERATION(positions_in_domain);
SPARSESYNC_OPERATION(rows_in_domain);
SPARSESYNC_OPERATION(count_below);

}  // namespace sparsesync
