// Partitions the rows of one row space among servers: row groups × column slices. `balanced`,
// `balanced_hash` and `sparse_ps` differ only in their partitioner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/context.h"
#include "kernels/indices/index_code.h"
#include "schemes/message/message.h"
#include "schemes/pattern.h"
#include "schemes/push_pull/grid.h"
#include "schemes/statistics.h"
#include "sparsesync/schemes.h"

namespace sparsesync {

/// The order of the rows in all pulled messages.
enum class PulledOrder : std::uint8_t { increasing, mixed };

/// Returns `increasing` if groups are in row order, and there is only one round.
constexpr PulledOrder pulled_order(bool groups_keep_order, int rounds) {
  return groups_keep_order && rounds == 1 ? PulledOrder::increasing : PulledOrder::mixed;
}

/// Partitions one row space among its servers, in a Grid. Within each group, rows have *group
/// indices*, which identify them in pushed messages. Increasing group indices are not necessarily
/// increasing rows. Pulled messages may identify rows by other indices.
///
/// All functions except divide(), renumber() and name_rows() are pure arithmetic, with the same
/// result on all workers.
class Placement {
 public:
  /// Index codes of messages. Nothing: the shortest code for each message.
  struct Codes {
    std::optional<IndexCode> push;
    std::optional<IndexCode> pull;
    /// Whether a group is sent dense if that is smaller. Requires groups with one server, and the
    /// same indices for push and pull.
    bool densifies = false;
  };
  /// Identifies a row.
  struct Place {
    int group = 0;
    Index index = 0;
  };

  Placement(RowSpace space, Grid grid, Codes codes)
      : space_(std::move(space)), grid_(grid), codes_(codes) {}
  virtual ~Placement() = default;

  const RowSpace& space() const { return space_; }
  Grid grid() const { return grid_; }
  Index slice_width() const { return grid_.slice_width(space_); }
  Index slice_bytes() const { return grid_.slice_bytes(space_); }
  /// Returns the group of a server, see Grid.
  int group_of(Rank server) const { return grid_.group_of(server); }
  /// Returns the first column of a server's slice, see Grid.
  Index first_column(Rank server) const { return grid_.first_column(space_, server); }

  /// Returns the number of indices of the largest group, [0, universe()).
  virtual Index universe() const = 0;
  /// Returns the number of indices of a group, [0, size(group)).
  virtual Index size(int group) const = 0;
  /// Returns the group and group index of a row. Must be implemented independently of divide(),
  /// because traffic() uses it to verify what divide() sends.
  virtual Place locate(Index row) const = 0;
  /// Returns whether groups, and the indices in each group, are in row order.
  virtual bool keeps_order() const { return false; }
  /// Returns the pulled indices of the group indices in `share`.
  virtual IndexRange pulled(int /*group*/, IndexRange share) const { return share; }

  /// Returns the group indices of a round, for all groups.
  IndexRange range(Round round) const { return round.part_of(universe()); }
  /// Returns the group indices of a round that exist in a group.
  IndexRange range(Round round, int group) const {
    const IndexRange all = range(round);
    return {std::min(all.begin, size(group)), std::min(all.end, size(group))};
  }
  /// Returns the group indices of a round that a server sends in pulled messages. The servers of a
  /// group divide them.
  IndexRange share(Round round, Rank server) const;
  /// Returns the section of a message that is pushed to a server.
  SectionSpec push_section(Round round, Rank server) const;
  /// Returns the section of a message that is pulled from a server.
  SectionSpec pull_section(Round round, Rank server) const;

  /// Partitions rows into groups. Does not synchronize the stream, unless an implementation says
  /// so.
  /// @param context      the context of all arguments
  /// @param rows         increasing, in [0, R)
  /// @param indices      receives the rows' group indices: group after group, increasing in each
  /// @param sources      receives, for each entry of `indices`, the position of its row in `rows`
  /// @param group_begin  `[row_groups + 1]`, in the context's memory: group j is [group_begin[j],
  ///     group_begin[j + 1])
  /// @throws BudgetError
  virtual void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
                      std::span<Index> sources, std::span<Index> group_begin) = 0;
  /// Converts group indices to pulled indices; both are increasing. Does not synchronize the
  /// stream.
  /// @return valid until the next call
  /// @throws CorruptDataError if an index does not exist in the group
  virtual std::span<const Index> renumber(const Context& /*context*/, int /*group*/,
                                          std::span<const Index> indices) {
    return indices;
  }
  /// Pulled indices of a group, and the memory for their rows.
  struct Naming {
    Index group = 0;
    std::span<const Index> pulled;
    std::span<Index> rows;
  };
  /// Converts pulled indices of some groups to rows. Does not synchronize the stream.
  /// @throws CorruptDataError if an index does not exist in its group
  virtual void name_rows(const Context& context, std::span<const Naming> groups) = 0;

  /// Chooses the grid again, from statistics that all workers agree on.
  virtual void adapt(const SpaceStatistics&) {}
  /// Returns the current choice of codes and grid.
  virtual SpaceChoice choice() const;

 protected:
  /// Sets the grid that grid() returns.
  void set_grid(Grid grid) { grid_ = grid; }

 private:
  RowSpace space_;
  Grid grid_;
  Codes codes_;
};

/// [row space] of the bucket, or of a scheme's derived row spaces.
using Placements = std::vector<std::unique_ptr<Placement>>;

}  // namespace sparsesync
