// split_all_gather (SparCML's static sparse "split all-gather", SSAR; Renggli et al., SC 2019).
// Each worker sends each other worker its rows of that worker's even range, which are added in rank
// order. Then the sums are all-gathered (message_gather.h), around a ring or by a hierarchy as in
// the paper. With a hierarchy, the largest range takes fewer sequential transfers.
#include "schemes/push_pull/even_partitioner.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

const SchemeRegistration registration({
    .name = "split_all_gather",
    .summary = "reduce at the owners of even ranges, then all-gather of the sums (SparCML, SSAR)",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::imbalanced,
               .format = Format::coo},
    .create = [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      const std::vector<RowSpace> spaces = row_spaces(environment.bucket->tensors);
      return push_and_pull(environment, even_placements(spaces, environment),
                           environment.bucket->options.pattern);
    },
    .cost = [](const Workload& workload) { return split_cost(workload, false); },
    .workspace_bytes = even_ranges_workspace_bytes,
    .heeds = {SchemeOption::pattern},
});

}  // namespace
}  // namespace sparsesync
