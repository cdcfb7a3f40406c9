#include "schemes/indices_first/indices_first.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "kernels/base/context.h"
#include "kernels/indices/index_code.h"
#include "kernels/rows/aggregate.h"
#include "schemes/message/index_set_exchange.h"
#include "schemes/message/message.h"

namespace sparsesync {
namespace {

/// Allocates heap memory without a budget, for host computations of workers on any device.
class HeapMemory : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream) override {
    return ::operator new (bytes, std::align_val_t{alignment});
  }
  void deallocate(void* pointer, std::size_t, std::size_t alignment, Stream) noexcept override {
    ::operator delete (pointer, std::align_val_t{alignment});
  }
};

/// The owners of a round's rows and the rows that each worker touched, computed from index sets.
struct OwnedRows {
  std::vector<Index> united;
  OwnedIndexSets places;             // [worker]: positions of its rows in `united`
  std::vector<std::int32_t> groups;  // row group of each row of `united`
};

OwnedRows owned_rows(const Ownership& ownership, const IndexSets& sets, IndexRange range) {
  HeapMemory memory;
  const Context context(memory);  // index sets are in host memory on all devices
  OwnersWorkspace workspace(context);
  OwnedRows rows;
  IndexSets in_range;
  for (const std::span<const Index> set : sets) in_range.push_back(indices_in(set, range));
  rows.united = united_rows(in_range);
  for (const std::span<const Index> set : in_range) {
    std::vector<Index>& places = rows.places.emplace_back();
    for (const Index row : set) {
      places.push_back(std::lower_bound(rows.united.begin(), rows.united.end(), row) -
                       rows.united.begin());
    }
  }
  rows.groups.resize(rows.united.size());
  ownership.choose(context, rows.united, views_of(rows.places), rows.groups, workspace);
  return rows;
}

}  // namespace

Traffic values_alone_traffic(std::span<const RowSpace> spaces, const Ownerships& ownerships,
                             int rounds, std::span<const IndexSets> sets) {
  const std::size_t size = sets.front().size();
  const Ranks workers(static_cast<int>(size));
  Traffic traffic(static_cast<int>(size));
  for (const Round round : Round::all(rounds)) {
    // [row space][worker, or the union][group]
    std::vector<std::vector<std::vector<Index>>> rows;
    for (std::size_t i = 0; i < spaces.size(); ++i) {
      const OwnedRows owned = owned_rows(*ownerships[i], sets[i], round.part_of(spaces[i].rows));
      auto& of_space = rows.emplace_back(size + 1, std::vector<Index>(size));
      for (const Rank worker : workers) {
        for (const Index place : owned.places[worker.index()]) {
          const std::int32_t group = owned.groups[static_cast<std::size_t>(place)];
          ++of_space[worker.index()][static_cast<std::size_t>(group)];
        }
      }
      for (const std::int32_t group : owned.groups) {
        ++of_space[size][static_cast<std::size_t>(group)];
      }
    }
    const auto values_of = [&](std::size_t set, Rank server) {
      std::vector<SectionSpec> specs;
      std::vector<SectionCounts> numbers;
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        const Grid grid = ownerships[i]->grid();
        const Index moved = rows[i][set][static_cast<std::size_t>(grid.group_of(server))];
        specs.push_back({{0, 0}, moved, grid.slice_bytes(spaces[i]), IndexCode::coo});
        numbers.push_back({0, moved});
      }
      return message_bytes(specs, numbers);
    };
    const std::vector<SectionSpec> set_specs = set_sections(spaces, round);
    for (const Rank worker : workers) {
      std::vector<SectionCounts> told;
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        const std::span<const Index> set = indices_in(sets[i][worker.index()], set_specs[i].range);
        told.push_back({std::ssize(set), 0});
      }
      for (const Rank other : peers_after(worker, static_cast<int>(size))) {
        traffic.message(worker, other, message_bytes(set_specs, told));
        traffic.message(worker, other, values_of(worker.index(), other));
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
  const double codes =
      sum_over_spaces(workload, [](const RowSpace& space, const SpaceStatistics& known) {
        const auto touched =
            std::min(space.rows, static_cast<Index>(std::llround(known.touched_mean)));
        return static_cast<double>(
            encoded_bytes(cheapest_code(space.rows, touched), space.rows, touched));
      });
  return all_to_all_cost(workload.size, overhead_bytes(workload.spaces.size()) + codes);
}

double values_alone_workspace_bytes(const RowSpace& space, int size,
                                    const SpaceStatistics& statistics) {
  const auto row = static_cast<double>(space.row_bytes());
  const double touches = size * statistics.touched_mean;
  // Memory for every worker's index set, positions and served rows; for sent and received messages,
  // which the gather phase shares with the reduce phase; for sums; for the result.
  const double part = statistics.united / size;
  const double sent = std::max(statistics.touched_max, part);
  const double received = std::max(statistics.touched_mean, statistics.united - part);
  return touches * (3.0 * sizeof(Index) + 2) + statistics.united * 7.0 * sizeof(Index) +
         (sent + received + part + statistics.united) * row +
         static_cast<double>(unite_workspace_bytes(space.rows, static_cast<Index>(touches)));
}

}  // namespace sparsesync
