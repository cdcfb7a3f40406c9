// The rows that a pull brings, put into order: of one row space on one worker.
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

/// In a step: share() of each server, then name(), for each round; sort(); scatter() of each round
/// and server. Indices are thus enough for all but scatter(). Keeps its memory.
class PulledRows {
 public:
  PulledRows(const Context& context, int rounds, int size);

  /// Room for the indices that a server sends in a round; valid until the next round's.
  /// @throws BudgetError
  std::span<Index> share(Rank server, Index count);

  /// Joins the shares of each group and turns their indices into rows. Does not synchronize the
  /// stream.
  /// @param pulled  what came, by server and row space; values may be missing
  /// @param space   which of them this one is
  /// @throws CorruptDataError if the shares of a group are not its rows, BudgetError
  void name(const Context& context, Round round, Placement& placement,
            std::span<const std::vector<ConstSection>> pulled, std::size_t space);

  /// Brings the rows of all rounds and groups into increasing order, where they are not. Does not
  /// synchronize the stream.
  /// @return with values that are yet to be placed; valid until the next call
  /// @throws BudgetError
  SpaceResult sort(const Context& context, const Placement& placement);

  /// What a server sent, by rank; values are there.
  struct Placing {
    Rank server;
    const ConstSection* section = nullptr;
  };
  /// Writes what servers sent to its rows and columns of the result. Does not synchronize the
  /// stream.
  void scatter(const Context& context, Round round, const Placement& placement,
               std::span<const Placing> sent);

 private:
  std::vector<Buffer<Index>> shares_;      // [server]
  std::vector<Buffer<Index>> rows_;        // [round], group after group
  std::vector<Index> row_count_;           // [round]
  std::vector<std::vector<Index>> first_;  // [round][group]: where its rows begin among its round's
  bool in_order_ = false;                  // as they are named: then there are no slots
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
