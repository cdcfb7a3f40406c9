// split_all_gather (SparCML's static sparse "split all-gather", SSAR; Renggli et al., SC 2019):
// each worker sends each other one its rows of that one's even range, which is added up in rank
// order; then the sums go around a ring.
#include "schemes/even_placement.h"
#include "schemes/push_pull.h"

namespace sparsesync {
namespace {

const SchemeRegistration registration({
    "split_all_gather",
    "rows to the owners of even ranges, whose sums go around a ring (SparCML, SSAR)",
    {Communication::point_to_point, Aggregation::one_shot, Partition::parallelism,
     Balance::imbalanced, Format::coo},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return push_and_pull<EvenPlacement>(environment, Communication::ring);
    },
    [](const Workload& workload) { return split_cost(workload, false); },
    even_ranges_workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
