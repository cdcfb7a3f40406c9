// sparse_ps: a sparse parameter server on every worker, with an even range of the rows (Zen, OSDI
// 2025, appendix B.1: "Sparse PS"). All workers push to all servers and pull from them.
#include "schemes/push_pull/even_partitioner.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

Cost cost(const Workload& workload) {
  return push_pull_cost(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    return even_servers_cost(space, workload.size, known);
  });
}

const SchemeRegistration registration({
    .name = "sparse_ps",
    .summary = "a server on every worker, with an even range of the rows (Sparse PS)",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::imbalanced,
               .format = Format::coo},
    .create = [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      const std::vector<RowSpace> spaces = row_spaces(environment.bucket->tensors);
      return push_and_pull(environment, even_placements(spaces, environment));
    },
    .cost = cost,
    .workspace_bytes = even_ranges_workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
