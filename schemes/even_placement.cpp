#include "schemes/even_placement.h"

#include "kernels/partition.h"
#include "kernels/rows.h"
#include "schemes/message_gather.h"
#include "schemes/push_pull.h"

namespace sparsesync {

void EvenPlacement::divide(const Context& context, std::span<const Index> rows,
                           std::span<Index> indices, std::span<Index> sources,
                           std::span<Index> group_begin) {
  divide_evenly(context, ranges_, rows, indices, group_begin);
  number(context, sources);
}

void EvenPlacement::name_rows(const Context& context, int group, std::span<const Index> pulled,
                              std::span<Index> rows) {
  shift(context, pulled, ranges_.range(group).begin, rows);
}

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
  // Of the other ranges no more is known than what they have together.
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

Cost even_servers_cost(const RowSpace& space, int size, const SpaceStatistics& known) {
  const EvenRangesBytes bytes = even_ranges_bytes(space, size, known, false);
  const double others = size - 1.0;
  return {{0, 0, bytes.push_sent, bytes.push_received},
          {0, 0, others * bytes.fullest_sums, others / size * bytes.sums}};
}

Cost split_cost(const Workload& workload, bool densifies) {
  Cost total = {push_pull_overhead(workload.spaces, workload.size, false).reduce, {}};
  const bool in_pieces = workload.options.pattern == Communication::point_to_point && !densifies &&
                         pulls_in_pieces(workload.spaces, workload.size, workload.statistics);
  GatheredBytes sums;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const EvenRangesBytes bytes =
        even_ranges_bytes(workload.spaces[i], workload.size, workload.statistics[i], densifies);
    total.reduce.bytes_sent += bytes.push_sent;
    total.reduce.bytes_received += bytes.push_received;
    sums.total += bytes.sums;
    sums.smallest += bytes.emptiest_sums;
    sums.largest += bytes.fullest_sums;
    const SpaceStatistics& known = workload.statistics[i];
    total += push_pull_compute(
        workload.spaces[i], workload.size, known,
        {{workload.size, 1}, known.push_skewness, known.pull_skewness, true, in_pieces});
    // Each row of what is dense is written, and read to find those that are not zero.
    const auto row = static_cast<double>(workload.spaces[i].row_bytes());
    total.reduce.work += {bytes.dense_pushed, bytes.dense_pushed * row};
    total.gather.work += {bytes.dense_sums, bytes.dense_sums * row};
  }
  total += {{}, gather_cost(workload.options.pattern, workload.size, sums, workload.spaces.size())};
  if (in_pieces) total += {{}, pieces_overhead(workload.size)};
  // The fullest range's server, to which most is pushed, has its sums already.
  total.gather.bytes_received -= sums.largest - sums.smallest;
  return total;
}

double even_range_workspace_bytes(const RowSpace& space, int size, const SpaceStatistics& known) {
  return push_pull_workspace_bytes(space, size, known, {size, 1},
                                   ceil_div<Index>(space.rows, size));
}

double even_ranges_workspace_bytes(const Workload& workload) {
  double bytes = 0;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    bytes += even_range_workspace_bytes(workload.spaces[i], workload.size, workload.statistics[i]);
  }
  return bytes;
}

}  // namespace sparsesync
