// Stable sort of keys that also returns their input positions. Partition and coalesce are based on
// it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Scratch memory of the sorts: one word per key (two if a key and its position do not fit into one
/// word), and the counters of a pass.
struct SortWorkspace {
  explicit SortWorkspace(const Context& context) : words(context), wide(context), counts(context) {}
  Buffer<std::uint64_t> words;
  Buffer<std::uint64_t> wide;
  Buffer<std::uint64_t> counts;
};

namespace cpu {
/// Sorts `keys` in increasing order. Does not synchronize the stream.
/// @param keys   in [0, bound)
/// @param bound  smaller bounds sort faster, because work is proportional to the bits of the bound
/// @throws BudgetError if the workspace may not grow
void sort_keys(const Context& context, std::span<Index> keys, Index bound,
               SortWorkspace& workspace);

/// Sorts `keys` in increasing order. Equal keys keep their order. Does not synchronize the stream.
/// @param keys   in [0, bound)
/// @param order  receives the input position of each sorted key; the same size as `keys`
/// @param bound  smaller bounds sort faster, because work is proportional to the bits of the bound
/// @throws BudgetError if the workspace may not grow
void sort_with_order(const Context& context, std::span<Index> keys, std::span<Index> order,
                     Index bound, SortWorkspace& workspace);
}  // namespace cpu

SPARSESYNC_OPERATION(sort_keys);
SPARSESYNC_OPERATION(sort_with_order);

}  // namespace sparsesync
