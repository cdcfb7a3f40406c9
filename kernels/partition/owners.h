// Owners: assigns each row of a union to the worker that sums it. All workers must know the rows
// that each worker touched.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Scratch memory of choose_owners().
struct OwnersWorkspace {
  explicit OwnersWorkspace(const Context& context)
      : touchers(context), begin(context), order(context), levels(context) {}
  Buffer<std::uint16_t> touchers;  // The workers that touched each row, row after row.
  // Start of each row's workers, and row counts per number of workers.
  Buffer<Index> begin;
  Buffer<Index> order;           // Rows, ordered by the number of workers that touched them.
  Buffer<std::uint64_t> levels;  // Sent rows, received rows and weight of each worker.
};

/// Arguments of find_places(), except the set.
struct PlacesJob {
  std::span<const Index> rows;
  std::span<Index> places;
};

/// Arguments of rows_of_owner(), except the owners.
struct OwnedJob {
  std::span<const Index> rows;
  std::span<const Index> places;
  std::span<Index> out;
};

namespace cpu {
/// Finds the position of each row in a set. Does not synchronize the stream.
/// @param set     increasing
/// @param rows    increasing
/// @param places  receives positions with set[places[i]] == rows[i]; the same size as `rows`
/// @param found   receives the number of leading rows that were found: all of them, or the position
///                of the first row that is not in the set
void find_places(const Context& context, std::span<const Index> set, std::span<const Index> rows,
                 std::span<Index> places, Count found);

/// Runs find_places() for each job, in one set. Does not synchronize the stream.
/// @param found  one count per job
void find_places_all(const Context& context, std::span<const Index> set,
                     std::span<const PlacesJob> jobs, std::span<Index> found);

/// Chooses, for each row of a union, one of the workers that touched it. Balances the rows that
/// workers send and the rows that they receive.
///
/// Let t of n workers touch a row. A worker sends the rows that it touched, and n - 2 more for each
/// row that it owns. It receives the union, and t - 2 more for each row that it owns. The choice is
/// the same on every device.
///
/// A row that one worker touched belongs to that worker. The other rows are assigned in batches, in
/// increasing order of t; the last batches are smaller and smaller. For each batch, a worker's
/// weight is the distance of its load below the water level that the batch would fill all loads up
/// to. A hash of the row picks one of its workers by weight. Does not synchronize the stream.
/// @param united   increasing
/// @param touched  per worker: the positions in `united` of its rows, increasing; at most 65,536
///                 workers; at least one worker touched each row
/// @param owners   receives the owner of each row
/// @throws BudgetError if the workspace may not grow
void choose_owners(const Context& context, std::span<const Index> united,
                   std::span<const std::span<const Index>> touched, std::span<std::int32_t> owners,
                   OwnersWorkspace& workspace);

/// Sorts positions of owned rows by owner. Those of one owner keep their order. Does not
/// synchronize the stream.
/// @param owners  owner of each row of a union, in [0, groups)
/// @param places  positions in the union
/// @param order   receives indices into `places`, first for owner 0, then for owner 1, ...
/// @param begin   groups + 1 numbers: owner j has [begin[j], begin[j + 1]). In the context's
///                memory, like Count.
void order_by_owner(const Context& context, std::span<const std::int32_t> owners,
                    std::span<const Index> places, std::span<Index> order, std::span<Index> begin);

/// Finds the rows among `rows` that belong to one owner. Does not synchronize the stream.
/// @param places  position of each row in the union
/// @param out     the same size as `rows`
/// @param count   receives the number of rows written
void rows_of_owner(const Context& context, std::span<const std::int32_t> owners,
                   std::span<const Index> rows, std::span<const Index> places, std::int32_t owner,
                   std::span<Index> out, Count count);

/// Runs rows_of_owner() for each job. Does not synchronize the stream.
/// @param counts  one count per job
void rows_of_owner_all(const Context& context, std::span<const std::int32_t> owners,
                       std::span<const OwnedJob> jobs, std::int32_t owner, std::span<Index> counts);
}  // namespace cpu

SPARSESYNC_OPERATION(find_places);
SPARSESYNC_OPERATION(find_places_all);
SPARSESYNC_OPERATION(choose_owners);
SPARSESYNC_OPERATION(order_by_owner);
SPARSESYNC_OPERATION(rows_of_owner);
SPARSESYNC_OPERATION(rows_of_owner_all);

}  // namespace sparsesync
