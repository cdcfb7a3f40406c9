#include "schemes/push_pull/even_partitioner.h"

#include <algorithm>

#include "kernels/base/views.h"
#include "kernels/partition/partition.h"
#include "kernels/rows/rows.h"
#include "schemes/message/message_gather.h"

namespace sparsesync {
namespace {

class EvenPlacement : public Placement {
 public:
  EvenPlacement(const RowSpace& space, const SchemeEnvironment& environment, bool densifies)
      : Placement(space, {environment.size, 1}, {IndexCode::coo, IndexCode::coo, densifies}),
        ranges_(space.rows, environment.size) {}

  Index universe() const override { return ranges_.range(0).size(); }
  Index size(int group) const override { return ranges_.range(group).size(); }
  bool keeps_order() const override { return true; }
  Place locate(Index row) const override {
    const Index range = ranges_.part_of(row);
    return {static_cast<int>(range), row - ranges_.range(range).begin};
  }

  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override {
    divide_evenly(context, ranges_, rows, indices, group_begin);
    number(context, sources);
  }
  void name_rows(const Context& context, std::span<const Naming> groups) override {
    for (const Naming& of : groups) {
      shift(context, of.pulled, ranges_.range(of.group).begin, of.rows);
    }
  }

 private:
  EvenRanges ranges_;
};

/// Predicted bytes of one row space in the even ranges of its servers.
struct EvenRangesBytes {
  double push_sent = 0;      // by the mean worker
  double push_received = 0;  // by the server of the fullest range
  double sums = 0;           // all ranges together
  double fullest_sums = 0;
  double emptiest_sums = 0;
  // Rows received in dense sections, by the server of the fullest range (pushed) and by each worker
  // (sums).
  double dense_pushed = 0;
  double dense_sums = 0;
};

EvenRangesBytes even_ranges_bytes(const RowSpace& space, int size, const SpaceStatistics& known,
                                  bool densifies) {
  const auto range = ceil_div<Index>(space.rows, size);
  const auto row = static_cast<double>(space.row_bytes());
  const double dense = static_cast<double>(range) * row;
  const auto coo = [&](double rows) {
    return rows * (row + static_cast<double>(coo_index_bytes(range)));
  };
  const auto bytes = [&](double rows) {
    return densifies ? std::min(coo(rows), dense) : coo(rows);
  };
  const auto dense_rows = [&](double rows) {
    return densifies && dense <= coo(rows) ? static_cast<double>(range) : 0;
  };
  if (size == 1) return {};
  // Only the total of the other ranges is known, so they are assumed to be equal.
  const double others = size - 1.0;
  const double pushed = known.touched_mean * known.push_skewness / size;
  const double pulled = known.united * known.pull_skewness / size;
  EvenRangesBytes all;
  all.push_received = others * bytes(pushed);
  all.push_sent =
      others / size * (bytes(pushed) + others * bytes((known.touched_mean - pushed) / others));
  all.fullest_sums = bytes(pulled);
  all.emptiest_sums = bytes((known.united - pulled) / others);
  all.sums = all.fullest_sums + others * all.emptiest_sums;
  all.dense_pushed = size * dense_rows(pushed);
  all.dense_sums = dense_rows(pulled) + others * dense_rows((known.united - pulled) / others);
  return all;
}

/// Returns the properties of even ranges that determine CPU work.
PushPullWork work_of(int size, const SpaceStatistics& known) {
  return {.grid = {size, 1},
          .push_imbalance = known.push_skewness,
          .pull_imbalance = known.pull_skewness,
          .in_order = true};
}

}  // namespace

Placements even_placements(std::span<const RowSpace> spaces, const SchemeEnvironment& environment,
                           bool densifies) {
  Placements placements;
  for (const RowSpace& space : spaces) {
    placements.push_back(std::make_unique<EvenPlacement>(space, environment, densifies));
  }
  return placements;
}

PlacedCost even_servers_cost(const RowSpace& space, int size, const SpaceStatistics& known) {
  const EvenRangesBytes bytes = even_ranges_bytes(space, size, known, false);
  const double others = size - 1.0;
  return {
      .bytes = {.reduce = {.bytes_sent = bytes.push_sent, .bytes_received = bytes.push_received},
                .gather = {.bytes_sent = others * bytes.fullest_sums,
                           .bytes_received = others / size * bytes.sums}},
      .how = work_of(size, known)};
}

Cost split_cost(const Workload& workload, bool densifies) {
  const int size = workload.size;
  Cost total{.reduce = all_to_all_cost(size, overhead_bytes(workload.spaces.size())), .gather = {}};
  const bool in_pieces = workload.options.pattern == Communication::point_to_point && !densifies &&
                         pulls_in_pieces(workload);
  GatheredBytes sums;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const RowSpace& space = workload.spaces[i];
    const SpaceStatistics& known = workload.statistics[i];
    const EvenRangesBytes bytes = even_ranges_bytes(space, size, known, densifies);
    total.reduce.bytes_sent += bytes.push_sent;
    total.reduce.bytes_received += bytes.push_received;
    sums.total += bytes.sums;
    sums.smallest += bytes.emptiest_sums;
    sums.largest += bytes.fullest_sums;
    total += push_pull_compute(space, size, known, work_of(size, known), in_pieces);
    // Each dense row is written, and read to find the rows that are not zero.
    const auto row = static_cast<double>(space.row_bytes());
    total.reduce.work +=
        {.encoded_rows = bytes.dense_pushed, .encoded_bytes = bytes.dense_pushed * row};
    total.gather.work +=
        {.encoded_rows = bytes.dense_sums, .encoded_bytes = bytes.dense_sums * row};
  }
  total += {.reduce = {},
            .gather = gather_cost(workload.options.pattern, size, sums, workload.spaces.size())};
  if (in_pieces) total += {.reduce = {}, .gather = pieces_overhead(size)};
  // The server of the fullest range receives the most pushed bytes, but has its sums already.
  total.gather.bytes_received -= sums.largest - sums.smallest;
  return total;
}

double even_range_workspace_bytes(const Workload& workload, const RowSpace& space,
                                  const SpaceStatistics& known) {
  return push_pull_workspace_bytes(workload, space, known, {workload.size, 1},
                                   ceil_div<Index>(space.rows, workload.size),
                                   pulled_order(true, workload.rounds));
}

double even_ranges_workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    return even_range_workspace_bytes(workload, space, known);
  });
}

}  // namespace sparsesync
