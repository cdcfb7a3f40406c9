// dynamic_split (SparCML's "dynamic sparse allreduce", DSAR; Renggli et al., SC 2019): as
// split_all_gather, but what a worker has of a range, or its sum, crosses dense (all rows, no
// indices) where that takes fewer bytes. Each sender chooses for each range; its numbers tell.
//
// A range that one worker pushed dense has all rows in its sum, whatever was zero-filled: its union
// is at least as large, so that the sum crosses dense too, and rows that are all zero are dropped
// on arrival.
#include "schemes/even_placement.h"
#include "schemes/push_pull.h"

namespace sparsesync {
namespace {

class DensifyingPlacement : public EvenPlacement {
 public:
  DensifyingPlacement(const RowSpace& space, int /*number*/, const SchemeEnvironment& environment)
      : EvenPlacement(space, environment, true) {}
};

double workspace_bytes(const Workload& workload) {
  double bytes = even_ranges_workspace_bytes(workload);
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const RowSpace& space = workload.spaces[i];
    // What came dense is kept without its zeros.
    const double kept = workload.statistics[i].united * static_cast<double>(space.row_bytes());
    if (kept > 0.9 * static_cast<double>(space.dense_bytes())) bytes += kept;
  }
  return bytes;
}

const SchemeRegistration registration({
    "dynamic_split",
    "as split_all_gather, but dense where that is smaller (SparCML, DSAR)",
    {Communication::point_to_point, Aggregation::one_shot, Partition::parallelism,
     Balance::imbalanced, Format::coo_then_dense},
    [](const SchemeEnvironment& environment) -> std::unique_ptr<Scheme> {
      return push_and_pull<DensifyingPlacement>(environment, environment.bucket->options.pattern);
    },
    [](const Workload& workload) { return split_cost(workload, true); },
    workspace_bytes,
    false,
    {SchemeOption::pattern},
});

}  // namespace
}  // namespace sparsesync
