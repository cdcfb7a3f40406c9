// Stable sort of keys that says where each came from: what partition and coalesce are made of.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// Scratch of the sorts: a word for each key (two where a key and its place do not fit into one
/// word), and the counts of a pass.
struct SortWorkspace {
  explicit SortWorkspace(const Context& context) : words(context), wide(context), counts(context) {}
  Buffer<std::uint64_t> words;
  Buffer<std::uint64_t> wide;
  Buffer<std::uint64_t> counts;
};

namespace cpu {
/// Sorts `keys` increasingly. Does not synchronize the stream.
/// @param keys   in [0, bound)
/// @param bound  smaller bounds sort faster: work is proportional to its bits
/// @throws BudgetError if the workspace may not grow
void sort_keys(const Context& context, std::span<Index> keys, Index bound,
               SortWorkspace& workspace);

/// Sorts `keys` increasingly; equal keys keep their order. Does not synchronize the stream.
/// @param keys   in [0, bound)
/// @param order  receives, beside each key, the place where it stood; as many as keys
/// @param bound  smaller bounds sort faster: work is proportional to its bits
/// @throws BudgetError if the workspace may not grow
void sort_with_order(const Context& context, std::span<Index> keys, std::span<Index> order,
                     Index bound, SortWorkspace& workspace);
}  // namespace cpu

SPARSESYNC_OPERATION(sort_keys);
SPARSESYNC_OPERATION(sort_with_order);

}  // namespace sparsesync
