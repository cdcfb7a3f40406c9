#include "schemes/push_pull/cost.h"

#include <algorithm>

#include "kernels/rows/aggregate.h"
#include "schemes/message/message_gather.h"

namespace sparsesync {
namespace {

/// Returns the workspace bytes of one row: values and indices.
double bytes_of_a_row(const RowSpace& space) {
  return static_cast<double>(space.row_bytes()) + 3 * sizeof(Index);
}

/// [group]: the group indices of a set's rows, increasing.
using GroupIndices = OwnedIndexSets;

GroupIndices indices_of(const Placement& placement, std::span<const Index> rows) {
  GroupIndices groups(static_cast<std::size_t>(placement.grid().row_groups));
  for (const Index row : rows) {
    const Placement::Place place = placement.locate(row);
    groups[static_cast<std::size_t>(place.group)].push_back(place.index);
  }
  for (std::vector<Index>& indices : groups) std::sort(indices.begin(), indices.end());
  return groups;
}

/// Returns [row space][worker] group indices, with those of the union at [size].
std::vector<std::vector<GroupIndices>> all_indices(const Placements& placements,
                                                   std::span<const IndexSets> sets) {
  std::vector<std::vector<GroupIndices>> all;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    std::vector<GroupIndices>& of_space = all.emplace_back();
    for (const std::span<const Index> rows : sets[i]) {
      of_space.push_back(indices_of(*placements[i], rows));
    }
    of_space.push_back(indices_of(*placements[i], united_rows(sets[i])));
  }
  return all;
}

/// Returns the largest server's part of a set, relative to the mean.
double imbalance_of(const Placements& placements, int size, std::size_t set,
                    const std::vector<std::vector<GroupIndices>>& all) {
  double total = 0;
  double most = 0;
  for (const Rank server : Ranks(size)) {
    double part = 0;
    for (std::size_t i = 0; i < placements.size(); ++i) {
      const auto group = static_cast<std::size_t>(placements[i]->group_of(server));
      part += static_cast<double>(all[i][set][group].size()) *
              static_cast<double>(placements[i]->slice_bytes());
    }
    total += part;
    most = std::max(most, part);
  }
  return total > 0 ? size * most / total : 1;
}

}  // namespace

Traffic push_pull_traffic(const Placements& placements, int size, int rounds, Pulling pulling,
                          std::span<const IndexSets> sets) {
  Traffic traffic(size);
  const auto united = static_cast<std::size_t>(size);
  const std::vector<std::vector<GroupIndices>> all = all_indices(placements, sets);
  for (const Round round : Round::all(rounds)) {
    std::vector<std::int64_t> pulls;
    for (const Rank server : Ranks(size)) {
      std::vector<SectionSpec> push;
      std::vector<SectionSpec> pull;
      std::vector<SectionCounts> pulled;
      // Counts the indices of a worker, or of the union, in the server's group and a range.
      const auto count = [&](std::size_t space, std::size_t set, IndexRange range) {
        const auto group = static_cast<std::size_t>(placements[space]->group_of(server));
        return std::ssize(indices_in(all[space][set][group], range));
      };
      for (std::size_t i = 0; i < placements.size(); ++i) {
        push.push_back(placements[i]->push_section(round, server));
        pull.push_back(placements[i]->pull_section(round, server));
        pulled.push_back({count(i, united, placements[i]->share(round, server)),
                          count(i, united, placements[i]->range(round))});
        if (pull[i].densifies) pulled[i] = crossing(pull[i], pulled[i].rows);
      }
      pulls.push_back(message_bytes(pull, pulled));
      for (const Rank worker : peers_after(server, size)) {
        std::vector<SectionCounts> pushed;
        for (std::size_t i = 0; i < placements.size(); ++i) {
          const Index rows = count(i, worker.index(), placements[i]->range(round));
          pushed.push_back(crossing(push[i], rows));
        }
        traffic.message(worker, server, message_bytes(push, pushed));
      }
    }
    count_gather(pulling.variant, pulls, traffic);
    if (!pulling.in_pieces) continue;
    // one additional message without additional bytes
    const std::vector<std::int64_t> cuts(pulls.size());
    count_gather(pulling.variant, cuts, traffic);
  }
  return traffic;
}

Imbalance push_pull_imbalance(const Placements& placements, int size,
                              std::span<const IndexSets> sets) {
  const std::vector<std::vector<GroupIndices>> all = all_indices(placements, sets);
  Imbalance imbalance;
  for (const Rank worker : Ranks(size)) {
    imbalance.push = std::max(imbalance.push, imbalance_of(placements, size, worker.index(), all));
  }
  imbalance.pull = imbalance_of(placements, size, static_cast<std::size_t>(size), all);
  return imbalance;
}

bool pulls_in_pieces(const Workload& workload, int rounds) {
  constexpr double kWorthwhile = 96'000;
  const double values =
      sum_over_spaces(workload, [](const RowSpace& space, const SpaceStatistics& known) {
        return known.united * static_cast<double>(space.row_bytes());
      });
  return workload.size > 1 && values / workload.size / rounds >= kWorthwhile;
}

PhaseCost pieces_overhead(int size) {
  PhaseCost heads = all_to_all_cost(size, static_cast<double>(kHeaderBytes));
  heads.steps = 0;  // sent together with the bodies
  return heads;
}

Cost push_pull_compute(const RowSpace& space, int size, const SpaceStatistics& statistics,
                       const PushPullWork& how, bool in_pieces) {
  const auto row = static_cast<double>(space.row_bytes());
  const Grid grid = how.grid;
  Cost cost;
  Work& push = cost.reduce.work;
  push.encoded_rows = statistics.touched_max * grid.column_slices;
  push.encoded_bytes = statistics.touched_max * row;
  push.aggregated_rows = statistics.touched_mean * grid.column_slices * how.push_imbalance;
  push.aggregated_bytes = statistics.touched_mean * row * how.push_imbalance;
  push += work_of_union(static_cast<double>(space.rows) / grid.row_groups, push.aggregated_rows);
  // Copying the sums of this worker's partition into a message.
  const double part = statistics.united / size * how.pull_imbalance;
  cost.gather.work.encoded_rows = part;
  cost.gather.work.encoded_bytes = part * row;
  // Scattering the sums of all partitions, each slice to its columns.
  Work& pull = in_pieces ? cost.gather.arriving : cost.gather.work;
  pull.encoded_rows += statistics.united * grid.column_slices;
  pull.encoded_bytes += statistics.united * row;
  pull.sorted_rows = how.in_order ? 0 : statistics.united;
  return cost;
}

Cost push_pull_cost(
    const Workload& workload,
    const FunctionView<PlacedCost(const RowSpace& space, const SpaceStatistics& known)>& placed) {
  const PhaseCost overhead = all_to_all_cost(workload.size, overhead_bytes(workload.spaces.size()));
  const bool in_pieces = pulls_in_pieces(workload);
  Cost total{.reduce = overhead, .gather = overhead};
  if (in_pieces) total += {.reduce = {}, .gather = pieces_overhead(workload.size)};
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const RowSpace& space = workload.spaces[i];
    const SpaceStatistics& known = workload.statistics[i];
    const PlacedCost cost = placed(space, known);
    total += cost.bytes;
    total += push_pull_compute(space, workload.size, known, cost.how, in_pieces);
  }
  return total;
}

double sums_workspace_bytes(const RowSpace& space, int size, double united, PulledOrder order) {
  // The sort order, its inverse, and the sort's scratch memory.
  const double sorting = order == PulledOrder::mixed ? 3 * sizeof(Index) : 0;
  return united * ((1 + 1.0 / size) * bytes_of_a_row(space) + sorting);
}

double push_pull_workspace_bytes(const Workload& workload, const RowSpace& space,
                                 const SpaceStatistics& statistics, Grid grid, Index universe,
                                 PulledOrder order) {
  // Sent and received messages. The pull reuses the memory of the push.
  const double part = statistics.united / workload.size;
  const double sent = std::max(statistics.touched_max / workload.rounds, part);
  const double received =
      std::max(statistics.touched_mean / workload.rounds, statistics.united - part);
  return (sent + received) * bytes_of_a_row(space) +
         sums_workspace_bytes(space, workload.size, statistics.united, order) +
         static_cast<double>(unite_workspace_bytes(
             universe,
             static_cast<Index>(workload.size * statistics.touched_mean / grid.row_groups)));
}

}  // namespace sparsesync
