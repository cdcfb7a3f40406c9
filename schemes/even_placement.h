// Rows on servers by even ranges of their numbers: what sparse_ps, split_all_gather and
// dynamic_split share. As uneven as the gradient is: what everybody touches lies in few ranges.
#pragma once

#include <algorithm>

#include "kernels/even_ranges.h"
#include "schemes/placement.h"

namespace sparsesync {

/// A server on every worker, each with an even range of the rows. Indices cross as COO, counted
/// from where the range begins.
class EvenPlacement : public Placement {
 public:
  EvenPlacement(const RowSpace& space, int /*number*/, const SchemeEnvironment& environment)
      : EvenPlacement(space, environment, false) {}

  Index universe() const override { return ranges_.range(0).size(); }
  Index size(int group) const override { return ranges_.range(group).size(); }
  bool keeps_order() const override { return true; }
  Place place(Index row) const override {
    const Index range = ranges_.part_of(row);
    return {static_cast<int>(range), row - ranges_.range(range).begin};
  }

  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override;
  void name_rows(const Context& context, int group, std::span<const Index> pulled,
                 std::span<Index> rows) override;

  SpaceChoice choice() const override {
    return {std::string(name_of(IndexCode::coo)), grid().row_groups, grid().column_slices};
  }

 protected:
  EvenPlacement(const RowSpace& space, const SchemeEnvironment& environment, bool densifies)
      : Placement(space, {environment.size, 1}, {IndexCode::coo, IndexCode::coo, densifies}),
        ranges_(space.rows, environment.size) {}

 private:
  EvenRanges ranges_;
};

/// What a row space's rows cost in the even ranges of its servers, as expected from statistics.
struct EvenRangesBytes {
  double push_sent = 0;      // by the mean worker
  double push_received = 0;  // by the fullest range's server
  double sums = 0;           // of all ranges together
  double fullest_sums = 0;
  double emptiest_sums = 0;
  // Rows that come dense, to the fullest range's server and to each worker.
  double dense_pushed = 0;
  double dense_sums = 0;
};

/// @param densifies  whether a range crosses whole, without indices, where that takes fewer bytes
EvenRangesBytes even_ranges_bytes(const RowSpace& space, int size, const SpaceStatistics& known,
                                  bool densifies);

/// The cost of one row space where all workers pull from all servers, message headers left out.
Cost even_servers_cost(const RowSpace& space, int size, const SpaceStatistics& known);

/// The cost where sums go to all workers in the way of SchemeOptions::pattern.
Cost split_cost(const Workload& workload, bool densifies);

/// Bytes of workspace that a worker needs for one row space, and for all of them.
double even_range_workspace_bytes(const RowSpace& space, int size, const SpaceStatistics& known);
double even_ranges_workspace_bytes(const Workload& workload);

}  // namespace sparsesync
