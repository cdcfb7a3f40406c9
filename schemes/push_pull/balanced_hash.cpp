// balanced_hash: the scheme of Zen (OSDI 2025, section 3). Hierarchical hashing assigns rows to
// workers (Algorithm 1). Pushed messages identify rows by COO. Pulled messages use hash bitmaps
// (Algorithm 2), for which every worker stores a table of all rows. Pushed indices are row numbers.
// Pulled indices are positions in the domain of a partition.
//
// Departure from the paper: its servers add messages in the order of arrival. Ours add in rank
// order, so that sums have the same bits in every run.
#include <algorithm>
#include <vector>

#include "kernels/partition/hash_bitmap.h"
#include "kernels/partition/hierarchical_hash.h"
#include "schemes/push_pull/cost.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

class HashPlacement final : public Placement {
 public:
  /// Synchronizes the stream.
  /// @throws BudgetError if a table of all rows does not fit
  HashPlacement(const RowSpace& space, int number, const SchemeEnvironment& environment)
      : Placement(space, {environment.size, 1}, {IndexCode::coo, IndexCode::bitmap}),
        hash_(environment.size, environment.seed + static_cast<std::uint64_t>(number)),
        domains_(environment.context),
        memory_(environment.context),
        positions_(environment.context) {
    build_domains(environment.context, hash_, space.rows, domains_);
    for (const Round round : Round::all(environment.bucket->rounds.value_or(1))) {
      edges_.push_back(range(round).begin);
    }
    edges_.push_back(space.rows);
    below_edges_.resize(static_cast<std::size_t>(environment.size) * edges_.size());
    count_below(environment.context, domains_, edges_, below_edges_);
  }

  Index universe() const override { return space().rows; }
  Index size(int) const override { return space().rows; }
  Place locate(Index row) const override { return {static_cast<int>(hash_.partition(row)), row}; }
  /// @param share  consists of whole rounds
  IndexRange pulled(int group, IndexRange share) const override {
    return {position_of_edge(group, share.begin), position_of_edge(group, share.end)};
  }

  /// Synchronizes the stream, because the host must check whether the hash's serial memory was
  /// large enough.
  void divide(const Context& context, std::span<const Index> rows, std::span<Index> indices,
              std::span<Index> sources, std::span<Index> group_begin) override {
    partition_by_hash(context, hash_, rows, indices, sources, group_begin, memory_);
  }
  std::span<const Index> renumber(const Context& context, int group,
                                  std::span<const Index> indices) override {
    const std::span<Index> positions = positions_.reserve(std::ssize(indices));
    positions_in_domain(context, domains_, group, indices, positions);
    return positions;
  }
  void name_rows(const Context& context, std::span<const Naming> groups) override {
    for (const Naming& of : groups) {
      rows_in_domain(context, domains_, of.group, of.pulled, of.rows);
    }
  }

  SpaceChoice choice() const override {
    return {"coo, hash_bitmap", grid().row_groups, grid().column_slices};
  }

 private:
  /// Returns the position of the first row from `row` on in a group's domain. `row` is one of
  /// `edges_`.
  Index position_of_edge(int group, Index row) const {
    const auto edge = std::lower_bound(edges_.begin(), edges_.end(), row);
    SPARSESYNC_EXPECT(edge != edges_.end() && *edge == row, ==, true);
    return below_edges_[static_cast<std::size_t>(group) * edges_.size() +
                        static_cast<std::size_t>(edge - edges_.begin())];
  }

  RowHash hash_;
  HashDomains domains_;
  // Bounds of the rounds within each domain, computed once because domains are in device memory.
  std::vector<Index> edges_;        // first rows of the rounds, and the end
  std::vector<Index> below_edges_;  // [group][edge]
  HashMemory memory_;
  Buffer<Index> positions_;
};

/// Cost of hierarchical hashing of a row, in sorted rows (measured by bench/kernels).
constexpr double kSortsOfHashing = 8;

Cost cost(const Workload& workload) {
  const double others = (workload.size - 1.0) / workload.size;
  return push_pull_cost(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const auto rows = static_cast<double>(space.rows);
    const auto row_bytes = static_cast<double>(space.row_bytes());
    const double imbalance = expected_imbalance(known.united, rows, workload.size);
    const double pushed = others * known.touched_mean *
                          (row_bytes + static_cast<double>(coo_index_bytes(space.rows)));
    const double values = others * known.united * row_bytes;
    const double bitmaps = known.united > 0 ? others * rows / 8 : 0;
    Cost bytes{
        .reduce = {.bytes_sent = pushed, .bytes_received = pushed * imbalance},
        .gather = {.bytes_sent = values * imbalance + bitmaps, .bytes_received = values + bitmaps}};
    bytes.reduce.work.sorted_rows = kSortsOfHashing * known.touched_max;
    return PlacedCost{
        .bytes = bytes,
        .how = {
            .grid = {workload.size, 1}, .push_imbalance = imbalance, .pull_imbalance = imbalance}};
  });
}

double workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const double domains =
        static_cast<double>(space.rows) * static_cast<double>(domain_entry_bytes(space.rows));
    const double cells = 2 * known.touched_max * 1.1 * sizeof(Index);
    return domains + cells +
           push_pull_workspace_bytes(workload, space, known, {workload.size, 1}, space.rows,
                                     PulledOrder::mixed);
  });
}

const SchemeRegistration registration({
    .name = "balanced_hash",
    .summary =
        "rows hashed to the workers, COO push and hash-bitmap pull (Zen's Algorithms 1 and 2)",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::balanced,
               .format = Format::coo_push_bitmap_pull},
    .create = push_and_pull<HashPlacement>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
});

}  // namespace
}  // namespace sparsesync
