// Stable sort of keys, each with a payload: what partition and coalesce are made of.
#pragma once

#include <span>

#include "kernels/buffer.h"
#include "kernels/context.h"
#include "kernels/views.h"

namespace sparsesync {

/// Scratch of sort_pairs(): room for one more copy of keys and payloads.
struct SortWorkspace {
  explicit SortWorkspace(const Context& context) : keys(context), payloads(context) {}
  Buffer<Index> keys;
  Buffer<Index> payloads;
};

namespace cpu {
/// Sorts `keys` increasingly and moves `payloads` with them; equal keys keep their order. Does not
/// synchronize the stream.
/// @param keys      in [0, bound)
/// @param payloads  as many as keys
/// @param bound     smaller bounds sort faster: work is proportional to its bytes
/// @throws BudgetError if the workspace may not grow
void sort_pairs(const Context& context, std::span<Index> keys, std::span<Index> payloads,
                Index bound, SortWorkspace& workspace);
}  // namespace cpu
inline constexpr Operation sort_pairs{cpu::sort_pairs};

}  // namespace sparsesync
