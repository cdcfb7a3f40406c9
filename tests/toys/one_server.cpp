// one_server: worker 0 is the only server. A toy that shows the parts of a scheme.
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
    const int groups = grid().row_groups;  // the first group gets all rows
    divide_evenly(context, {space().rows * groups, groups}, rows, indices, group_begin);
    number(context, sources);
  }
  void name_rows(const Context& context, std::span<const Naming> groups) override {
    for (const Naming& of : groups) shift(context, of.pulled, 0, of.rows);
  }
};

Cost cost(const Workload& workload) {
  return push_pull_cost(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const double n = workload.size;  // worker 0 pushes and pulls nothing
    const auto row = static_cast<double>(space.row_bytes() + coo_index_bytes(space.rows));
    return PlacedCost{
        .bytes = {.reduce = {.bytes_received = (n - 1) * known.touched_mean * row},
                  .gather = {.bytes_sent = (n - 1) * known.united * row}},
        .how = {.grid = {workload.size, 1}, .push_imbalance = n, .pull_imbalance = n}};
  });
}

double workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    return workload.size * push_pull_workspace_bytes(workload, space, known, {1, 1}, space.rows,
                                                     PulledOrder::mixed);
  });
}

const SchemeRegistration registration({.name = "one_server",
                                       .summary = "rows to worker 0 and sums from it (a toy)",
                                       .design = {.communication = Communication::point_to_point,
                                                  .aggregation = Aggregation::one_shot,
                                                  .partition = Partition::centralization,
                                                  .balance = Balance::imbalanced,
                                                  .format = Format::coo},
                                       .create = push_and_pull<OneServer>,
                                       .cost = cost,
                                       .workspace_bytes = workspace_bytes});

}  // namespace
}  // namespace sparsesync
