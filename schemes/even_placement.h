// Rows on servers by even ranges of their numbers: what `sparse_ps` does to rows and `block_ps` to
// blocks.
#pragma once

#include <string>

#include "kernels/even_ranges.h"
#include "schemes/placement.h"

namespace sparsesync {

/// Server j owns the j-th even range. Rows cross as COO, counted from where the range begins.
class EvenPlacement : public Placement {
 public:
  EvenPlacement(const RowSpace& space, int number, const SchemeEnvironment& environment);

  Index universe() const override { return ranges_.range(0).size(); }
  Index size(int group) const override { return ranges_.range(group).size(); }
  Place place(Index row) const override;
  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override;
  void name_rows(const Context& context, int group, std::span<const Index> pulled,
                 std::span<Index> rows) override;
  SpaceChoice choice() const override;

 private:
  EvenRanges ranges_;
};

/// What one row space costs in one step, message headers left out.
Cost even_placement_cost(const RowSpace& space, int size, const SpaceStatistics& statistics);

/// Bytes that a worker needs for it, as expected from statistics.
double even_placement_workspace_bytes(const RowSpace& space, int size,
                                      const SpaceStatistics& statistics);

}  // namespace sparsesync
