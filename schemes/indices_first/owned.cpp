// owned: the scheme with the fewest bytes. All workers know all index sets, and each row is owned
// by a worker that touched it. A row that t workers touched takes t - 1 transfers to its owner and
// n - 1 from it. No scheme without in-network reduction needs fewer transfers
// (docs/concepts/lower-bound.md).
#include <algorithm>

#include "kernels/partition/owners.h"
#include "schemes/indices_first/indices_first.h"
#include "schemes/message/message.h"
#include "schemes/push_pull/cost.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

class TouchersOwn : public Ownership {
 public:
  TouchersOwn(const RowSpace&, int /*number*/, const SchemeEnvironment& environment)
      : size_(environment.size) {}

  Grid grid() const override { return {size_, 1}; }
  void choose(const Context& context, std::span<const Index> united,
              std::span<const std::span<const Index>> touched, std::span<std::int32_t> groups,
              OwnersWorkspace& workspace) const override {
    choose_owners(context, united, touched, groups, workspace);
  }

 private:
  int size_;
};

Cost cost(const Workload& workload) {
  const double n = workload.size;
  const PhaseCost overhead = all_to_all_cost(workload.size, overhead_bytes(workload.spaces.size()));
  Cost total{.reduce = overhead, .gather = overhead};
  if (!workload.announced) total += {.reduce = set_exchange_cost(workload), .gather = {}};
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const RowSpace& space = workload.spaces[i];
    const SpaceStatistics& known = workload.statistics[i];
    const auto row = static_cast<double>(space.row_bytes());
    const double pushed = (known.touched_mean - known.united / n) * row;
    const double pulled = (n - 1) / n * known.united * row;
    // The owner assignment balances all rows except those that a single worker touched.
    const double more = std::max(0.0, known.sent_at_least * row - pushed - pulled);
    total += {.reduce = {.bytes_sent = pushed, .bytes_received = pushed},
              .gather = {.bytes_sent = pulled + more, .bytes_received = pulled}};
    // Values are scattered as they arrive.
    Cost compute = push_pull_compute(space, workload.size, known,
                                     {.grid = {workload.size, 1}, .in_order = true}, true);
    if (!workload.announced) {
      const double touches = n * known.touched_mean;
      compute.reduce.work.owned_rows = touches;
      compute.reduce.work += work_of_union(static_cast<double>(space.rows), touches);
    }
    total += compute;
  }
  return total;
}

double workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    return values_alone_workspace_bytes(space, workload.size, known);
  });
}

const SchemeRegistration registration({
    .name = "owned",
    .summary = "index sets first, then values only; a worker that touched a row adds it up",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::values_alone},
    .create = values_alone<TouchersOwn>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
    .heeds = {SchemeOption::announce},
});

}  // namespace
}  // namespace sparsesync
