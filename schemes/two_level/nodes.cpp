#include "schemes/two_level/nodes.h"

#include <algorithm>
#include <cmath>

namespace sparsesync {

OwnedIndexSets node_sets(const IndexSets& sets, const Nodes& nodes, IndexRange range) {
  OwnedIndexSets all;
  for (int node = 0; node < nodes.count(); ++node) {
    IndexSets of_node;
    for (int place = 0; place < nodes.per_node(); ++place) {
      of_node.push_back(indices_in(sets[nodes.worker(node, place).index()], range));
    }
    std::vector<Index>& rows = all.emplace_back(united_rows(of_node));
    for (Index& row : rows) row -= range.begin;
  }
  return all;
}

SpaceStatistics range_statistics(const SpaceStatistics& statistics, Index rows, const Nodes& nodes,
                                 int place) {
  if (!statistics.nodes.empty()) return statistics.nodes[static_cast<std::size_t>(place)];
  const int workers = nodes.count() * nodes.per_node();
  if (statistics.touched_mean <= 0 || workers == 1) return {};
  // Position of a node's workers on a logarithmic scale from one worker to all workers.
  const double inside = std::log(nodes.per_node()) / std::log(workers);
  const double growth =
      std::pow(std::max(1.0, statistics.united / statistics.touched_mean), inside);
  const double share = std::pow(statistics.pull_skewness, inside) / nodes.per_node();
  const auto most = static_cast<double>(nodes.range(rows, place).size());
  const auto of_range = [&](double number) { return std::min(most, number * share); };
  return {of_range(statistics.touched_mean * growth),
          of_range(std::min(statistics.united, statistics.touched_max * growth)),
          of_range(statistics.united), std::pow(statistics.push_skewness, 1 - inside),
          std::pow(statistics.pull_skewness, 1 - inside)};
}

}  // namespace sparsesync
