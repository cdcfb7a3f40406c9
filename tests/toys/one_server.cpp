// one_server: worker 0 is the only server. A toy, which shows what a scheme is made of.
#include "kernels/partition/partition.h"
#include "kernels/rows/rows.h"
#include "schemes/push_pull/cost.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

class OneServer : public Placement {
 public:
  OneServer(const RowSpace& space, int /*number*/, const SchemeEnvironment& environment)
      : Placement(space, {environment.size, 1}, {IndexCode::coo, IndexCode::coo}) {}

  Index universe() const override { return space().rows; }
  Index size(int group) const override { return group == 0 ? space().rows : 0; }
  Place locate(Index row) const override { return {0, row}; }
  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override {
    // Ranges as long as the row space: all rows lie in the first one.
    const EvenRanges ranges(space().rows * grid().row_groups, grid().row_groups);
    divide_evenly(context, ranges, rows, indices, group_begin);
    number(context, sources);
  }
  void name_rows(const Context& context, std::span<const Naming> groups) override {
    for (const Naming& of : groups) shift(context, of.pulled, 0, of.rows);
  }
};

Cost cost(const Workload& workload) {
  return push_pull_cost(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const double n = workload.size;
    const auto row = static_cast<double>(space.row_bytes() + coo_index_bytes(space.rows));
    const double pushed = (n - 1) * known.touched_mean * row;  // to worker 0, which pushes nothing
    const double pulled = (n - 1) * known.united * row;        // from worker 0, which pulls nothing
    return PlacedCost{{{0, 0, 0, pushed}, {0, 0, pulled, 0}}, {{workload.size, 1}, n, n}};
  });
}

double workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const int n = workload.size;
    return n * push_pull_workspace_bytes(workload, space, known, {1, 1}, space.rows,
                                         PulledOrder::mixed);
  });
}

const SchemeRegistration registration({
    "one_server",
    "rows to worker 0 and sums from it (a toy)",
    {Communication::point_to_point, Aggregation::one_shot, Partition::centralization,
     Balance::imbalanced, Format::coo},
    push_and_pull<OneServer>,
    cost,
    workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
