// block_ps: OmniReduce (SIGCOMM 2021) without dedicated aggregators; see Zen, OSDI 2025, 2.2
// to 2.4: "OmniReduce". Each row space's flat array is divided into blocks of SchemeOptions::block
// elements. Each worker is a server for an even range of the blocks. Blocks are sent as COO. For
// push and pull, a block is a row of a wider row space.
//
// A block is sent if it contains a touched row. OmniReduce tests every element and skips blocks
// that are all zero. Here, the indices show touched rows, and a zero row of a dense tensor does not
// count as touched. Zero blocks are thus sent only within touched rows, or for sums that cancel.
// The result has the rows that are not all zero.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/rows/blocks.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/push_pull/even_partitioner.h"
#include "schemes/push_pull/push_pull.h"
#include "schemes/registry.h"
#include "schemes/statistics.h"

namespace sparsesync {
namespace {

std::vector<RowSpace> block_spaces(std::span<const RowSpace> spaces, Index block) {
  std::vector<RowSpace> all;
  for (const RowSpace& space : spaces) all.push_back(block_space(space, block));
  return all;
}

/// Returns block_statistics() of each row space.
Statistics statistics_of_blocks(std::span<const RowSpace> spaces, Index block,
                                const Statistics& statistics) {
  Statistics of_blocks;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    of_blocks.push_back(block_statistics(spaces[i], block, statistics[i]));
  }
  return of_blocks;
}

class BlockPs : public Scheme {
 public:
  explicit BlockPs(const SchemeEnvironment& environment)
      : Scheme(environment),
        block_(environment.bucket->options.block),
        block_spaces_(block_spaces(spaces_, block_)),
        blocks_(context_, block_spaces_),
        inner_(push_and_pull(environment, even_placements(block_spaces_, environment))),
        count_(context_) {
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      pushed_.emplace_back(context_);
      rows_.emplace_back(context_);
    }
    count_.reserve_exactly(1);
  }

  Pattern pattern(Phase phase) const override { return inner_->pattern(phase); }
  std::size_t pieces(Phase phase, Round round, std::size_t step) const override {
    return inner_->pieces(phase, round, step);
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    if (exchange.round().index == 0) {
      gradients_.clear();
      for (std::size_t i = 0; i < spaces_.size(); ++i) gradients_.push_back(to_blocks(i, input));
      blocks_.set(gradients_);
    }
    inner_->reduce(exchange, blocks_);
  }

  void gather(Exchange& exchange) override {
    inner_->gather(exchange);
    if (!exchange.round().last()) return;
    for (std::size_t i = 0; i < spaces_.size(); ++i) to_rows(i);
  }

  /// Lists blocks. They contain zeros if a row space ends within a block.
  bool list_owned(std::vector<OwnedPart>& parts) const override {
    return inner_->list_owned(parts);
  }

  void adapt(const Statistics& statistics) override {
    inner_->adapt(statistics_of_blocks(spaces_, block_, statistics));
  }
  std::vector<SpaceChoice> choices() const override { return inner_->choices(); }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    std::vector<OwnedIndexSets> storage;
    return inner_->traffic(sets_of_blocks(sets, storage));
  }
  std::optional<Imbalance> imbalance(std::span<const IndexSets> sets) const override {
    std::vector<OwnedIndexSets> storage;
    return inner_->imbalance(sets_of_blocks(sets, storage));
  }

 private:
  /// Row or block numbers, and their values.
  struct List {
    explicit List(const Context& context) : numbers(context), values(context) {}
    Buffer<Index> numbers;
    Buffer<std::byte> values;
  };

  /// Fills a list with rows of `width` elements by write(numbers, values, count). Calls it again
  /// with larger memory if the first was too small. Synchronizes the stream.
  template <typename Write>
  RowSparse fill(List& list, DType dtype, Index width, Write&& write) {
    const Index row_bytes = width * element_bytes(dtype);
    const auto view = [&](Index rows) { return Matrix{list.values.data(), dtype, rows, width}; };
    const auto written = [&](Index room) {
      write(list.numbers.first(room), view(room), Count(count_.data()));
      return resolve(context_, Count(count_.data()));
    };
    const Index room = std::min(list.numbers.capacity(), list.values.capacity() / row_bytes);
    const Index found = written(room);
    if (found > room) {
      list.numbers.reserve(found);
      list.values.reserve(found * row_bytes);
      written(found);
    }
    return {list.numbers.first(found), as_const(view(found))};
  }

  Gradient to_blocks(std::size_t space, BucketInput& input) {
    const RowSparse rows = input.coalesced(space);
    const RowSpace& blocks = block_spaces_[space];
    const RowSparse list = fill(pushed_[space], blocks.dtype, blocks.width,
                                [&](std::span<Index> numbers, Matrix values, Count count) {
                                  rows_to_blocks(context_, rows, numbers, values, count);
                                });
    return Gradient::row_sparse(list.indices, list.values.data);
  }

  void to_rows(std::size_t space) {
    const RowSpace& shape = spaces_[space];
    const SpaceResult& sums = inner_->result()[space];
    const RowSparse list = fill(
        rows_[space], shape.dtype, shape.width,
        [&](std::span<Index> numbers, Matrix values, Count count) {
          blocks_to_rows(context_, {sums.indices, sums.values}, shape.rows, numbers, values, count);
        });
    results_[space] = {Gradient::Layout::row_sparse, list.indices, list.values};
  }

  std::vector<IndexSets> sets_of_blocks(std::span<const IndexSets> sets,
                                        std::vector<OwnedIndexSets>& storage) const {
    std::vector<IndexSets> all;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      all.push_back(views_of(storage.emplace_back(block_sets(sets[i], spaces_[i], block_))));
    }
    return all;
  }

  Index block_;
  std::vector<RowSpace> block_spaces_;
  BucketInput blocks_;
  std::unique_ptr<Scheme> inner_;
  std::vector<Gradient> gradients_;  // gradients of blocks
  std::vector<List> pushed_;         // blocks
  std::vector<List> rows_;
  Buffer<Index> count_;
};

Cost cost(const Workload& workload) {
  const Index block = workload.options.block;
  const std::vector<RowSpace> spaces = block_spaces(workload.spaces, block);
  const Statistics statistics = statistics_of_blocks(workload.spaces, block, workload.statistics);
  Cost total = push_pull_cost({.spaces = spaces,
                               .size = workload.size,
                               .statistics = statistics,
                               .options = workload.options},
                              [&](const RowSpace& blocks, const SpaceStatistics& known) {
                                return even_servers_cost(blocks, workload.size, known);
                              });
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    // Rows are converted to blocks, and blocks to rows. Finding a row's position costs as much as
    // for a sum.
    const auto block_bytes = static_cast<double>(spaces[i].row_bytes());
    const SpaceStatistics& known = statistics[i];
    const SpaceStatistics& rows = workload.statistics[i];
    total.reduce.work +=
        {.encoded_bytes = known.touched_max * block_bytes, .aggregated_rows = rows.touched_max};
    // All rows of the blocks are read.
    const double looked_at =
        known.united * static_cast<double>(block) / static_cast<double>(workload.spaces[i].width);
    total.gather.work += {.encoded_rows = looked_at,
                          .encoded_bytes = known.united * block_bytes,
                          .aggregated_rows = rows.united};
  }
  return total;
}

double workspace_bytes(const Workload& workload) {
  const Index block = workload.options.block;
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& statistics) {
    const RowSpace blocks = block_space(space, block);
    const SpaceStatistics known = block_statistics(space, block, statistics);
    // This worker's rows as blocks, and the sums as rows.
    return even_range_workspace_bytes(workload, blocks, known) +
           known.touched_max * (static_cast<double>(blocks.row_bytes()) + sizeof(Index)) +
           statistics.united * (static_cast<double>(space.row_bytes()) + sizeof(Index));
  });
}

void check(const SchemeOptions& options, int) {
  if (options.block < 1) {
    throw InputError(fmt::format("block_ps: blocks of {} elements: use at least 1; 256 is common",
                                 options.block));
  }
}

const SchemeRegistration registration({
    .name = "block_ps",
    .summary = "a server on every worker, with an even range of the non-zero blocks (OmniReduce)",
    .design = {.communication = Communication::point_to_point,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::parallelism,
               .balance = Balance::imbalanced,
               .format = Format::blocks},
    .create = make_scheme<BlockPs>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
    .heeds = {SchemeOption::block},
    .check = check,
});

}  // namespace
}  // namespace sparsesync
