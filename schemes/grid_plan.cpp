#include "schemes/grid_plan.h"

#include <algorithm>

#include "kernels/aggregate.h"

namespace sparsesync {
namespace {

/// The positions of one row space's rows in each group, increasing. By plain arithmetic, not by the
/// partition that gradients take: an account that shares its code with what it counts would prove
/// nothing.
using GroupPositions = std::vector<std::vector<Index>>;

GroupPositions positions_of(const GridPlan& plan, std::span<const Index> rows) {
  GroupPositions groups(static_cast<std::size_t>(plan.grid().row_groups));
  for (const Index row : rows) {
    const RowGroups::Place place = plan.groups().place(row);
    groups[static_cast<std::size_t>(place.group)].push_back(place.position);
  }
  for (std::vector<Index>& positions : groups) std::sort(positions.begin(), positions.end());
  return groups;
}

/// [row space][worker], and the union of all workers at [size].
std::vector<std::vector<GroupPositions>> all_positions(std::span<const GridPlan> plans,
                                                       std::span<const IndexSets> sets) {
  std::vector<std::vector<GroupPositions>> all;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::vector<GroupPositions>& of_space = all.emplace_back();
    for (const std::span<const Index> rows : sets[i]) {
      of_space.push_back(positions_of(plans[i], rows));
    }
    of_space.push_back(positions_of(plans[i], united_rows(sets[i])));
  }
  return all;
}

/// The largest server's part of a set over the mean.
double imbalance_of(std::span<const GridPlan> plans, int size, std::size_t set,
                    const std::vector<std::vector<GroupPositions>>& all) {
  double total = 0;
  double most = 0;
  for (int server = 0; server < size; ++server) {
    double part = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const auto group = static_cast<std::size_t>(plans[i].group_of(server));
      part += static_cast<double>(all[i][set][group].size()) *
              static_cast<double>(plans[i].slice_bytes());
    }
    total += part;
    most = std::max(most, part);
  }
  return total > 0 ? size * most / total : 1;
}

}  // namespace

IndexRange GridPlan::share(Round round, int server) const {
  const IndexRange positions = range(round);
  const IndexRange within = Round{slice_of(server), grid_.column_slices}.part_of(positions.size());
  return {positions.begin + within.begin, positions.begin + within.end};
}

SectionSpec GridPlan::push_section(Round round) const {
  const IndexRange positions = range(round);
  return {positions, positions.size(), slice_bytes(), std::nullopt};
}

SectionSpec GridPlan::pull_section(Round round, int server) const {
  return {share(round, server), range(round).size(), slice_bytes(), std::nullopt};
}

Traffic balanced_traffic(std::span<const GridPlan> plans, int size, int rounds,
                         std::span<const IndexSets> sets) {
  Traffic traffic(size);
  const std::vector<std::vector<GroupPositions>> all = all_positions(plans, sets);
  for (int number = 0; number < rounds; ++number) {
    const Round round{number, rounds};
    for (int server = 0; server < size; ++server) {
      std::vector<SectionSpec> push;
      std::vector<SectionSpec> pull;
      std::vector<SectionCounts> pulled;
      // Positions of a worker (or of the union) in the server's group, in a range.
      const auto count = [&](std::size_t space, int worker, IndexRange range) {
        const auto group = static_cast<std::size_t>(plans[space].group_of(server));
        return static_cast<Index>(
            indices_in(all[space][static_cast<std::size_t>(worker)][group], range).size());
      };
      for (std::size_t i = 0; i < plans.size(); ++i) {
        push.push_back(plans[i].push_section(round));
        pull.push_back(plans[i].pull_section(round, server));
        pulled.push_back({count(i, size, pull[i].range), count(i, size, push[i].range)});
      }
      for (int worker = 0; worker < size; ++worker) {
        if (worker == server) continue;
        std::vector<SectionCounts> pushed;
        for (std::size_t i = 0; i < plans.size(); ++i) {
          const Index rows = count(i, worker, push[i].range);
          pushed.push_back({rows, rows});
        }
        traffic.message(worker, server, message_bytes(push, pushed));
        traffic.message(server, worker, message_bytes(pull, pulled));
      }
    }
  }
  return traffic;
}

Imbalance balanced_imbalance(std::span<const GridPlan> plans, int size,
                             std::span<const IndexSets> sets) {
  const std::vector<std::vector<GroupPositions>> all = all_positions(plans, sets);
  Imbalance imbalance;
  for (std::size_t worker = 0; worker < static_cast<std::size_t>(size); ++worker) {
    imbalance.push = std::max(imbalance.push, imbalance_of(plans, size, worker, all));
  }
  imbalance.pull = imbalance_of(plans, size, static_cast<std::size_t>(size), all);
  return imbalance;
}

Cost balanced_cost(std::span<const RowSpace> spaces, int size, const Statistics& statistics) {
  Cost total;
  const double headers =
      (size - 1.0) * static_cast<double>(kHeaderBytes + 16 * static_cast<Index>(spaces.size()));
  const double steps = size > 1 ? 1 : 0;
  for (PhaseCost* phase : {&total.reduce, &total.gather}) {
    *phase = {steps, size - 1.0, headers, headers};
  }
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const Cost one = expected_cost(spaces[i], size, statistics[i],
                                   cheapest_grid(spaces[i], size, statistics[i]));
    total.reduce.bytes_sent += one.reduce.bytes_sent;
    total.reduce.bytes_received += one.reduce.bytes_received;
    total.gather.bytes_sent += one.gather.bytes_sent;
    total.gather.bytes_received += one.gather.bytes_received;
  }
  return total;
}

double balanced_workspace_bytes(std::span<const RowSpace> spaces, int size,
                                const Statistics& statistics) {
  double bytes = 0;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const auto row = static_cast<double>(spaces[i].row_bytes()) + 3 * sizeof(Index);
    const SpaceStatistics& known = statistics[i];
    const Grid grid = cheapest_grid(spaces[i], size, known);
    // Pushes sent and received; own sums, as kept and as sent; the pull as received and in order.
    bytes +=
        (known.touched_max + known.touched_mean + known.united * (2.0 / size + 2)) * row +
        static_cast<double>(unite_workspace_bytes(ceil_div<Index>(spaces[i].rows, grid.row_groups),
                                                  static_cast<Index>(size * known.touched_mean)));
  }
  return bytes;
}

}  // namespace sparsesync
