// sparse_ps: a sparse parameter server on every worker, each with an even range of the rows (Zen,
// OSDI 2025, section 3: "Sparse PS"), that all workers push to and pull from.
#include "schemes/even_placement.h"
#include "schemes/push_pull.h"

namespace sparsesync {
namespace {

Cost cost(const Workload& workload) {
  const bool in_pieces = pulls_in_pieces(workload.spaces, workload.size, workload.statistics);
  Cost total = push_pull_overhead(workload.spaces, workload.size, in_pieces);
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const SpaceStatistics& known = workload.statistics[i];
    total += even_servers_cost(workload.spaces[i], workload.size, known);
    total += push_pull_compute(
        workload.spaces[i], workload.size, known,
        {{workload.size, 1}, known.push_skewness, known.pull_skewness, true, in_pieces});
  }
  return total;
}

const SchemeRegistration registration({
    "sparse_ps",
    "a server on every worker for an even range of the rows (Sparse PS)",
    {Communication::point_to_point, Aggregation::one_shot, Partition::parallelism,
     Balance::imbalanced, Format::coo},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return push_and_pull<EvenPlacement>(environment);
    },
    cost,
    even_ranges_workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
