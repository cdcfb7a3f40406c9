// sparse_ps: a sparse parameter server on every worker, each with an even range of the rows (Zen,
// OSDI 2025, section 3: "Sparse PS"). Rows cross as COO, counted from where the range begins. As
// uneven as the gradient is: what everybody touches lies in few ranges.
#include "kernels/partition.h"
#include "kernels/rows.h"
#include "schemes/push_pull.h"

namespace sparsesync {
namespace {

class EvenPlacement : public Placement {
 public:
  EvenPlacement(const RowSpace& space, int /*number*/, const SchemeEnvironment& environment)
      : Placement(space, {environment.size, 1}, {IndexCode::coo, IndexCode::coo}),
        ranges_(space.rows, environment.size) {}

  Index universe() const override { return ranges_.range(0).size(); }
  Index size(int group) const override { return ranges_.range(group).size(); }
  Place place(Index row) const override {
    const Index range = ranges_.part_of(row);
    return {static_cast<int>(range), row - ranges_.range(range).begin};
  }

  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override {
    divide_evenly(context, ranges_, rows, indices, group_begin);
    number(context, sources);
  }
  void name_rows(const Context& context, int group, std::span<const Index> pulled,
                 std::span<Index> rows) override {
    shift(context, pulled, ranges_.range(group).begin, rows);
  }

  SpaceChoice choice() const override {
    return {std::string(name_of(IndexCode::coo)), grid().row_groups, grid().column_slices};
  }

 private:
  EvenRanges ranges_;
};

Cost cost(const Workload& workload) {
  Cost total = push_pull_overhead(workload.spaces, workload.size);
  const double others = (workload.size - 1.0) / workload.size;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const SpaceStatistics& known = workload.statistics[i];
    const auto row = static_cast<double>(
        workload.spaces[i].row_bytes() +
        coo_index_bytes(ceil_div<Index>(workload.spaces[i].rows, workload.size)));
    const double pushed = others * known.touched_mean * row;
    const double pulled = others * known.united * row;
    total += {{0, 0, pushed, pushed * known.push_skewness},
              {0, 0, pulled * known.pull_skewness, pulled}};
    total += push_pull_compute(workload.spaces[i], workload.size, known, {workload.size, 1},
                               known.push_skewness, known.pull_skewness);
  }
  return total;
}

double workspace_bytes(const Workload& workload) {
  double bytes = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    bytes += push_pull_workspace_bytes(workload.spaces[i], workload.size, workload.statistics[i],
                                       {workload.size, 1},
                                       ceil_div<Index>(workload.spaces[i].rows, workload.size));
  }
  return bytes;
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
    workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
