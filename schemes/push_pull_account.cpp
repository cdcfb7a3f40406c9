// The account of push and pull.
#include <algorithm>

#include "kernels/aggregate.h"
#include "schemes/message_gather.h"
#include "schemes/push_pull.h"

namespace sparsesync {
namespace {

/// The indices of a set's rows in each group, increasing.
using GroupIndices = std::vector<std::vector<Index>>;

GroupIndices indices_of(const Placement& placement, std::span<const Index> rows) {
  GroupIndices groups(static_cast<std::size_t>(placement.grid().row_groups));
  for (const Index row : rows) {
    const Placement::Place place = placement.place(row);
    groups[static_cast<std::size_t>(place.group)].push_back(place.index);
  }
  for (std::vector<Index>& indices : groups) std::sort(indices.begin(), indices.end());
  return groups;
}

/// [row space][worker], and the union of all workers at [size].
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

/// The largest server's part of a set over the mean.
double imbalance_of(const Placements& placements, int size, std::size_t set,
                    const std::vector<std::vector<GroupIndices>>& all) {
  double total = 0;
  double most = 0;
  for (int server = 0; server < size; ++server) {
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

IndexRange Placement::share(Round round, int server) const {
  const IndexRange all = range(round, group_of(server));
  const IndexRange within = Round{slice_of(server), grid_.column_slices}.part_of(all.size());
  return {all.begin + within.begin, all.begin + within.end};
}

SectionSpec Placement::push_section(Round round, int server) const {
  const IndexRange all = range(round, group_of(server));
  return {all, all.size(), slice_bytes(), codes_.push, codes_.densifies};
}

SectionSpec Placement::pull_section(Round round, int server) const {
  const int group = group_of(server);
  return {pulled(group, share(round, server)), pulled(group, range(round, group)).size(),
          slice_bytes(), codes_.pull, codes_.densifies};
}

bool pulls_in_pieces(std::span<const RowSpace> spaces, int size, const Statistics& statistics,
                     int rounds) {
  constexpr double kWorthwhile = 96'000;
  double values = 0;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    values += statistics[i].united * static_cast<double>(spaces[i].row_bytes());
  }
  return size > 1 && values / size / rounds >= kWorthwhile;
}

Traffic push_pull_traffic(const Placements& placements, int size, int rounds, Pulling pulling,
                          std::span<const IndexSets> sets) {
  Traffic traffic(size);
  const std::vector<std::vector<GroupIndices>> all = all_indices(placements, sets);
  for (int number = 0; number < rounds; ++number) {
    const Round round{number, rounds};
    std::vector<std::int64_t> pulls;
    for (int server = 0; server < size; ++server) {
      std::vector<SectionSpec> push;
      std::vector<SectionSpec> pull;
      std::vector<SectionCounts> pulled;
      // How many a worker (or the union) has in the server's group and in a range.
      const auto count = [&](std::size_t space, int worker, IndexRange range) {
        const auto group = static_cast<std::size_t>(placements[space]->group_of(server));
        return static_cast<Index>(
            indices_in(all[space][static_cast<std::size_t>(worker)][group], range).size());
      };
      for (std::size_t i = 0; i < placements.size(); ++i) {
        push.push_back(placements[i]->push_section(round, server));
        pull.push_back(placements[i]->pull_section(round, server));
        pulled.push_back({count(i, size, placements[i]->share(round, server)),
                          count(i, size, placements[i]->range(round))});
        if (pull[i].densifies) pulled[i] = crossing(pull[i], pulled[i].rows);
      }
      pulls.push_back(message_bytes(pull, pulled));
      for (int worker = 0; worker < size; ++worker) {
        if (worker == server) continue;
        std::vector<SectionCounts> pushed;
        for (std::size_t i = 0; i < placements.size(); ++i) {
          const Index rows = count(i, worker, placements[i]->range(round));
          pushed.push_back(crossing(push[i], rows));
        }
        traffic.message(worker, server, message_bytes(push, pushed));
      }
    }
    count_gather(pulling.way, pulls, traffic);
    if (!pulling.in_pieces) continue;
    const std::vector<std::int64_t> cuts(pulls.size());  // the same bytes, in one message more
    count_gather(pulling.way, cuts, traffic);
  }
  return traffic;
}

Imbalance push_pull_imbalance(const Placements& placements, int size,
                              std::span<const IndexSets> sets) {
  const std::vector<std::vector<GroupIndices>> all = all_indices(placements, sets);
  Imbalance imbalance;
  for (std::size_t worker = 0; worker < static_cast<std::size_t>(size); ++worker) {
    imbalance.push = std::max(imbalance.push, imbalance_of(placements, size, worker, all));
  }
  imbalance.pull = imbalance_of(placements, size, static_cast<std::size_t>(size), all);
  return imbalance;
}

PhaseCost pieces_overhead(int size) {
  const double headers = (size - 1.0) * static_cast<double>(kHeaderBytes);
  return {0, size - 1.0, headers, headers};
}

Cost push_pull_overhead(std::span<const RowSpace> spaces, int size, bool in_pieces) {
  const double headers =
      (size - 1.0) * static_cast<double>(kHeaderBytes + 16 * static_cast<Index>(spaces.size()));
  const PhaseCost phase{size > 1 ? 1.0 : 0.0, size - 1.0, headers, headers};
  Cost cost{phase, phase};
  if (in_pieces) cost += {{}, pieces_overhead(size)};
  return cost;
}

Cost push_pull_compute(const RowSpace& space, int size, const SpaceStatistics& statistics,
                       const PushPullWork& how) {
  const auto row = static_cast<double>(space.row_bytes());
  const Grid grid = how.grid;
  Cost cost;
  Work& push = cost.reduce.work;
  push.encoded_rows = statistics.touched_max * grid.column_slices;
  push.encoded_bytes = statistics.touched_max * row;
  push.aggregated_rows = statistics.touched_mean * grid.column_slices * how.push_imbalance;
  push.aggregated_bytes = statistics.touched_mean * row * how.push_imbalance;
  push += work_of_union(static_cast<double>(space.rows) / grid.row_groups, push.aggregated_rows);
  // The sums of its part into a message.
  const double part = statistics.united / size * how.pull_imbalance;
  cost.gather.work.encoded_rows = part;
  cost.gather.work.encoded_bytes = part * row;
  // Those of all parts to their places, each slice to its columns.
  Work& pull = how.in_pieces ? cost.gather.arriving : cost.gather.work;
  pull.encoded_rows += statistics.united * grid.column_slices;
  pull.encoded_bytes += statistics.united * row;
  pull.sorted_rows = how.in_order ? 0 : statistics.united;
  return cost;
}

double push_pull_workspace_bytes(const RowSpace& space, int size, const SpaceStatistics& statistics,
                                 Grid grid, Index universe) {
  const auto row = static_cast<double>(space.row_bytes()) + 3 * sizeof(Index);
  return (statistics.touched_max + statistics.touched_mean + statistics.united * (2.0 / size + 2)) *
             row +
         static_cast<double>(unite_workspace_bytes(
             universe, static_cast<Index>(size * statistics.touched_mean / grid.row_groups)));
}

}  // namespace sparsesync
