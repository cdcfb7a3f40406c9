// Owners: who sums which row, where all workers know who touched what.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Scratch of choose_owners().
struct OwnersWorkspace {
  explicit OwnersWorkspace(const Context& context)
      : touchers(context), begin(context), order(context), levels(context) {}
  Buffer<std::uint16_t> touchers;  // of each row, row after row
  Buffer<Index> begin;             // of each row's touchers, and of each number of them
  Buffer<Index> order;             // the rows by how many touched them
  Buffer<std::uint64_t> levels;    // what each worker sends, receives, weighs
};

/// Rows whose places are sought.
struct PlacesJob {
  std::span<const Index> rows;
  std::span<Index> places;
};

/// Rows of which some are sought.
struct OwnedJob {
  std::span<const Index> rows;
  std::span<const Index> places;
  std::span<Index> out;
};

namespace cpu {
/// The place of each row in a set. Does not synchronize the stream.
/// @param set     increasing
/// @param rows    increasing
/// @param places  receives set[places[i]] == rows[i]; as many as rows
/// @param found   receives how many of the rows, from the first on, were found: all of them, or the
///                place of the first one that is not in the set
void find_places(const Context& context, std::span<const Index> set, std::span<const Index> rows,
                 std::span<Index> places, Count found);

/// find_places() of each job, in one set. Does not synchronize the stream.
/// @param found  as many counts as jobs
void find_places_all(const Context& context, std::span<const Index> set,
                     std::span<const PlacesJob> jobs, std::span<Index> found);

/// Chooses for each row of a union one of the workers that touched it, so that all workers send
/// nearly the same, and receive nearly the same: worker i sends its own rows and n - 2 more for
/// each row that it owns, and receives the union and t - 2 more for each row that it owns and t
/// touched (design: "Our own schemes", `owned`). The same choice on every device.
///
/// A row that one worker touched is its. The others are chosen in batches, those of few touchers
/// first, the last ones ever smaller: for a batch each worker weighs as much as it lies below the
/// water level that the batch would fill it to, and a hash of the row picks one of its touchers by
/// weight. Does not synchronize the stream.
/// @param united   increasing
/// @param touched  of each worker the places in `united` of its rows, increasing; at most 65,536
///                 workers, and each row touched by one at least
/// @param owners   receives a worker for each row
/// @throws BudgetError if the workspace may not grow
void choose_owners(const Context& context, std::span<const Index> united,
                   std::span<const std::span<const Index>> touched, std::span<std::int32_t> owners,
                   OwnersWorkspace& workspace);

/// Brings places of owned rows into the order of their owners: those of one owner keep their order.
/// Does not synchronize the stream.
/// @param owners  of the rows of a union, in [0, groups)
/// @param places  in the union
/// @param order   receives numbers of `places`: of those whose rows owner 0 has, then owner 1, ...
/// @param begin   groups + 1 numbers: owner j's are [begin[j], begin[j + 1]). Counts in the
///                context's memory, as Count is
void order_by_owner(const Context& context, std::span<const std::int32_t> owners,
                    std::span<const Index> places, std::span<Index> order, std::span<Index> begin);

/// The rows among `rows` that one owner has. Does not synchronize the stream.
/// @param places  of the rows in the union
/// @param out     room for as many as rows
/// @param count   receives how many were written
void rows_of_owner(const Context& context, std::span<const std::int32_t> owners,
                   std::span<const Index> rows, std::span<const Index> places, std::int32_t owner,
                   std::span<Index> out, Count count);

/// rows_of_owner() of each job. Does not synchronize the stream.
/// @param counts  as many as jobs
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
