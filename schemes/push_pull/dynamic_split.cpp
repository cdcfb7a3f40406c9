// dynamic_split (SparCML's "dynamic sparse allreduce", DSAR; Renggli et al., SC 2019). Like
// split_all_gather, but each sender sends a range, or its sums, dense (all rows, no indices) if
// that is smaller. The counts of a message show its choice.
//
// A range that one worker pushed dense has all rows in its sums, including zero-filled rows. Its
// union is at least as large, so its sums are sent dense, too, and the receiver removes rows that
// are zero.
#include "schemes/push_pull/even_partitioner.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

double workspace_bytes(const Workload& workload) {
  return even_ranges_workspace_bytes(workload) +
         sum_over_spaces(workload, [](const RowSpace& space, const SpaceStatistics& known) {
           // Dense sections are kept without their zero rows.
           const double kept = known.united * static_cast<double>(space.row_bytes());
           return kept > 0.9 * static_cast<double>(space.dense_bytes()) ? kept : 0;
         });
}

const SchemeRegistration registration({
    .name = "dynamic_split",
    .summary = "split_all_gather, but ranges are sent dense if that is smaller (SparCML, DSAR)",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::imbalanced,
               .format = Format::coo_then_dense},
    .create = [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      const std::vector<RowSpace> spaces = row_spaces(environment.bucket->tensors);
      return push_and_pull(environment, even_placements(spaces, environment, true),
                           environment.bucket->options.pattern);
    },
    .cost = [](const Workload& workload) { return split_cost(workload, true); },
    .workspace_bytes = workspace_bytes,
    .heeds = {SchemeOption::pattern},
});

}  // namespace
}  // namespace sparsesync
