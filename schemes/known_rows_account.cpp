// The account of values alone.
#include <algorithm>
#include <cmath>

#include "kernels/index_code.h"
#include "schemes/known_rows.h"
#include "schemes/message.h"
#include "schemes/set_exchange.h"

namespace sparsesync {
namespace {

/// The owners of a round's rows, and who touched them, worked out from index sets alone.
struct OwnedRows {
  std::vector<Index> united;
  std::vector<std::vector<Index>> places;  // [worker]
  std::vector<std::int32_t> groups;        // of each row of the union
};

OwnedRows owned_rows(const Context& context, Ownership& ownership, const IndexSets& sets,
                     IndexRange range) {
  OwnedRows rows;
  IndexSets in_range;
  for (const std::span<const Index> set : sets) in_range.push_back(indices_in(set, range));
  rows.united = united_rows(in_range);
  IndexSets touched;
  for (const std::span<const Index> set : in_range) {
    std::vector<Index>& places = rows.places.emplace_back();
    for (const Index row : set) {
      places.push_back(std::lower_bound(rows.united.begin(), rows.united.end(), row) -
                       rows.united.begin());
    }
  }
  touched.assign(rows.places.begin(), rows.places.end());
  rows.groups.resize(rows.united.size());
  ownership.choose(context, rows.united, touched, rows.groups);
  return rows;
}

}  // namespace

Traffic values_alone_traffic(const Context& context, std::span<const RowSpace> spaces,
                             const Ownerships& ownerships, int rounds,
                             std::span<const IndexSets> sets) {
  const auto size = sets.front().size();
  const auto workers = static_cast<int>(size);
  Traffic traffic(workers);
  for (int number = 0; number < rounds; ++number) {
    const Round round{number, rounds};
    // [row space][worker, or the union][group]
    std::vector<std::vector<std::vector<Index>>> rows(spaces.size());
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      const OwnedRows owned =
          owned_rows(context, *ownerships[i], sets[i], round.part_of(spaces[i].rows));
      rows[i].assign(size + 1, std::vector<Index>(size));
      for (std::size_t worker = 0; worker < size; ++worker) {
        for (const Index place : owned.places[worker]) {
          ++rows[i][worker]
                [static_cast<std::size_t>(owned.groups[static_cast<std::size_t>(place)])];
        }
      }
      for (const std::int32_t group : owned.groups) {
        ++rows[i][size][static_cast<std::size_t>(group)];
      }
    }
    const auto values_of = [&](std::size_t of, int server) {
      std::vector<SectionSpec> specs;
      std::vector<SectionCounts> numbers;
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        const Index moved = rows[i][of][static_cast<std::size_t>(ownerships[i]->group_of(server))];
        specs.push_back({{0, 0}, moved, ownerships[i]->slice_bytes(spaces[i]), IndexCode::coo});
        numbers.push_back({0, moved});
      }
      return message_bytes(specs, numbers);
    };
    const std::vector<SectionSpec> set_specs = set_sections(spaces, round);
    for (int worker = 0; worker < workers; ++worker) {
      std::vector<SectionCounts> told;
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        const std::span<const Index> set = sets[i][static_cast<std::size_t>(worker)];
        told.push_back({static_cast<Index>(indices_in(set, set_specs[i].range).size()), 0});
      }
      for (int other = 0; other < workers; ++other) {
        if (other == worker) continue;
        traffic.message(worker, other, message_bytes(set_specs, told));
        traffic.message(worker, other, values_of(static_cast<std::size_t>(worker), other));
        traffic.message(worker, other, values_of(size, worker));
      }
    }
  }
  return traffic;
}

Imbalance values_alone_imbalance(const Traffic& traffic) {
  const auto worst = [](const std::vector<std::int64_t>& bytes) {
    double total = 0;
    for (const std::int64_t of_worker : bytes) total += static_cast<double>(of_worker);
    const auto most = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
    return total > 0 ? static_cast<double>(bytes.size()) * most / total : 1;
  };
  return {worst(traffic.payload_received), worst(traffic.payload_sent)};
}

PhaseCost set_exchange_cost(const Workload& workload) {
  if (workload.size < 2) return {};
  const double peers = workload.size - 1.0;
  auto bytes = static_cast<double>(kHeaderBytes + 16 * static_cast<Index>(workload.spaces.size()));
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const Index rows = workload.spaces[i].rows;
    const auto touched =
        std::min(rows, static_cast<Index>(std::llround(workload.statistics[i].touched_mean)));
    bytes += static_cast<double>(encoded_bytes(cheapest_code(rows, touched), rows, touched));
  }
  return {1, peers, peers * bytes, peers * bytes};
}

double values_alone_workspace_bytes(const RowSpace& space, int size,
                                    const SpaceStatistics& statistics) {
  const auto row = static_cast<double>(space.row_bytes());
  const double touches = size * statistics.touched_mean;
  // Sets, places and rows served of every worker; what is pushed and what comes; sums and pulls.
  return touches * (3.0 * sizeof(Index) + 2) +
         statistics.united * (row * (2 + 2.0 / size) + 7.0 * sizeof(Index)) +
         (statistics.touched_max + statistics.touched_mean) * row +
         static_cast<double>(unite_workspace_bytes(space.rows, static_cast<Index>(touches)));
}

}  // namespace sparsesync
