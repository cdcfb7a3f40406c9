// Who owns what where workers push to servers and pull from them: one row space, divided into row
// groups × column slices. What `balanced`, `balanced_hash` and `sparse_ps` differ in.
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

/// How the rows that a worker pulls follow each other.
enum class PulledOrder : std::uint8_t { increasing, mixed };

/// In order if groups are, and no round's rows lie between another's.
constexpr PulledOrder pulled_order(bool groups_keep_order, int rounds) {
  return groups_keep_order && rounds == 1 ? PulledOrder::increasing : PulledOrder::mixed;
}

/// A row space on its servers, divided as Grid says. In each group rows have *indices* of the
/// group's own, by which a push names them; increasing indices are increasing rows or not, as the
/// placement likes. A pull may name them by others. All but divide(), renumber()
/// and name_rows() is arithmetic, the same on all workers.
class Placement {
 public:
  /// How indices cross; the cheapest code for each message where none is given.
  struct Codes {
    std::optional<IndexCode> push;
    std::optional<IndexCode> pull;
    /// Whether a group crosses dense where that takes fewer bytes: for groups of one server, pulled
    /// by the indices that they are pushed by.
    bool densifies = false;
  };
  /// Where a row stands.
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
  /// As Grid has it.
  int group_of(Rank server) const { return grid_.group_of(server); }
  /// As Grid has it.
  Index first_column(Rank server) const { return grid_.first_column(space_, server); }

  /// The indices of the largest group are [0, universe()).
  virtual Index universe() const = 0;
  /// Those of a group are [0, size(group)).
  virtual Index size(int group) const = 0;
  /// Computed row by row, not as divide() does: an account that shares its code with what it counts
  /// would prove nothing.
  virtual Place locate(Index row) const = 0;
  /// Whether groups follow each other in the order of rows, and so do the indices in each.
  virtual bool keeps_order() const { return false; }
  /// What the pull calls those of a group's indices that lie in `share`.
  virtual IndexRange pulled(int /*group*/, IndexRange share) const { return share; }

  /// The indices that a round moves, in every group.
  IndexRange range(Round round) const { return round.part_of(universe()); }
  /// Those of them that a group has.
  IndexRange range(Round round, int group) const {
    const IndexRange all = range(round);
    return {std::min(all.begin, size(group)), std::min(all.end, size(group))};
  }
  /// Those of them that a server names in the pull: the servers of a group divide them.
  IndexRange share(Round round, Rank server) const;
  /// What both ends know of a push to a server.
  SectionSpec push_section(Round round, Rank server) const;
  /// What both ends know of a pull from it.
  SectionSpec pull_section(Round round, Rank server) const;

  /// Divides rows among the groups. Does not synchronize the stream, but where a placement says so.
  /// @param rows         increasing, in [0, R)
  /// @param indices      receives the rows' indices, group after group, increasing in each
  /// @param sources      receives, beside each, the place of its row in `rows`
  /// @param group_begin  row_groups + 1 numbers: group j's are [group_begin[j], group_begin[j +
  /// 1]).
  ///                     Counts in the context's memory, as Count is
  /// @throws BudgetError
  virtual void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
                      std::span<Index> sources, std::span<Index> group_begin) = 0;
  /// From what a push calls a group's rows to what a pull does; both increase. Does not synchronize
  /// the stream.
  /// @return valid until the next call
  /// @throws CorruptDataError if no row of the group has such an index
  virtual std::span<const Index> renumber(const Context& /*context*/, int /*group*/,
                                          std::span<const Index> indices) {
    return indices;
  }
  /// Some of a group's rows, and where their numbers go.
  struct Naming {
    Index group = 0;
    std::span<const Index> pulled;
    std::span<Index> rows;
  };
  /// From what a pull calls rows of some groups to the rows. Does not synchronize the stream.
  /// @throws CorruptDataError if no row of a group has such an index
  virtual void name_rows(const Context& context, std::span<const Naming> groups) = 0;

  /// Chooses anew, from what all workers agree on.
  virtual void adapt(const SpaceStatistics&) {}
  virtual SpaceChoice choice() const;

 protected:
  /// Sets the grid that grid() returns.
  void set_grid(Grid grid) { grid_ = grid; }

 private:
  RowSpace space_;
  Grid grid_;
  Codes codes_;
};

/// One for each row space: of the bucket's tensors, or of what a scheme makes of them.
using Placements = std::vector<std::unique_ptr<Placement>>;

}  // namespace sparsesync
