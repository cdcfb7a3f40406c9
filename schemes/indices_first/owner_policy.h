// Who owns which rows where all workers know all index sets: what `owned` and an announced
// `balanced` differ in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/partition/owners.h"
#include "schemes/push_pull/grid.h"

namespace sparsesync {

/// The owners of one row space, divided as Grid says.
class Ownership {
 public:
  virtual ~Ownership() = default;
  virtual Grid grid() const = 0;
  /// The row group of each row of the union. Does not synchronize the stream.
  /// @param touched  of each worker the places in `united` of its rows
  /// @throws BudgetError if the workspace may not grow
  virtual void choose(const Context& context, std::span<const Index> united,
                      std::span<const std::span<const Index>> touched,
                      std::span<std::int32_t> groups, OwnersWorkspace& workspace) const = 0;
};

/// One for each row space of the bucket.
using Ownerships = std::vector<std::unique_ptr<Ownership>>;

}  // namespace sparsesync
