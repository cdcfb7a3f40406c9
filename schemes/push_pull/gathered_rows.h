// Sorts the rows of pulled messages, for one row space on one worker.
#pragma once

#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/context.h"
#include "kernels/indices/sort.h"
#include "kernels/rows/rows.h"
#include "schemes/message/message.h"
#include "schemes/pattern.h"
#include "schemes/push_pull/partitioner.h"
#include "schemes/scheme.h"

namespace sparsesync {

/// Call share() for each server and then name(), for each round. Then call sort() once, and
/// scatter() for each round and server. Only scatter() needs values. Keeps its memory between
/// steps.
class PulledRows {
 public:
  PulledRows(const Context& context, int rounds, int size);

  /// Returns memory for the indices of a server in a round. Valid until the next round.
  /// @throws BudgetError
  std::span<Index> share(Rank server, Index count);

  /// Concatenates the shares of each group and converts their indices to rows. Does not synchronize
  /// the stream.
  /// @param context    the context of all memory
  /// @param round      the round
  /// @param placement  the partitioner
  /// @param pulled     [server][row space]: received sections; values may be missing
  /// @param space      index of this row space
  /// @throws CorruptDataError if the shares do not add up to the rows of a group; BudgetError
  void name(const Context& context, Round round, Placement& placement,
            std::span<const std::vector<ConstSection>> pulled, std::size_t space);

  /// Sorts the rows of all rounds and groups, unless they are in order. Does not synchronize the
  /// stream.
  /// @return the result, whose values scatter() writes; valid until the next call
  /// @throws BudgetError
  SpaceResult sort(const Context& context, const Placement& placement);

  /// A section with values, and the server that sent it.
  struct Placing {
    Rank server;
    const ConstSection* section = nullptr;
  };
  /// Copies values from servers to their rows and columns of the result. Does not synchronize the
  /// stream.
  void scatter(const Context& context, Round round, const Placement& placement,
               std::span<const Placing> sent);

 private:
  std::vector<Buffer<Index>> shares_;      // [server]
  std::vector<Buffer<Index>> rows_;        // [round]: rows, group after group
  std::vector<Index> row_count_;           // [round]
  std::vector<std::vector<Index>> first_;  // [round][group]: position of its first row in the round
  bool in_order_ = false;                  // whether rows arrive in order, and `slots_` is unused
  Buffer<Index> order_;
  Buffer<Index> slots_;
  SortWorkspace workspace_;
  std::vector<Placement::Naming> naming_;
  std::vector<ScatterJob> jobs_;
  Buffer<Index> indices_;
  Buffer<std::byte> values_;
  Matrix result_;
};

}  // namespace sparsesync
