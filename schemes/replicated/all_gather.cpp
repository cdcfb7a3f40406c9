// all_gather (AGsparse): an all-gather of every worker's coalesced rows, around a ring, by a
// hierarchy or point to point (message_gather.h). Each worker adds the rows up in rank order, so
// that all patterns give the same bits. The reduce phase does everything. Rows are sent as COO, as
// in the original.
#include <array>

#include "kernels/rows/aggregate.h"
#include "schemes/bucket_input.h"
#include "schemes/exchange.h"
#include "schemes/message/header_check.h"
#include "schemes/message/local_rows.h"
#include "schemes/message/message_gather.h"
#include "schemes/registry.h"
#include "schemes/replicated/replicated_sum.h"

namespace sparsesync {
namespace {

SectionSpec section_spec(const RowSpace& space, Round round) {
  const IndexRange part = round.part_of(space.rows);
  return {part, part.size(), space.row_bytes(), IndexCode::coo};
}

class AllGather : public SumsEverywhere {
 public:
  explicit AllGather(const SchemeEnvironment& environment)
      : SumsEverywhere(environment),
        pattern_(environment.bucket->options.pattern),
        known_(context_),
        own_(context_, spaces_),
        gather_(context_, rank_, size_, pattern_) {
    for ([[maybe_unused]] const Rank worker : Ranks(size_)) {
      received_.emplace_back(context_, spaces_.size());
    }
    for (const RowSpace& space : spaces_) dtypes_.push_back(space.dtype);
  }

  Pattern pattern(Phase phase) const override {
    return phase == Phase::reduce ? gather_.pattern() : Pattern{};
  }

  void reduce(Exchange& exchange, BucketInput& input) override {
    const Round round = exchange.round();
    specs_.clear();
    for (const RowSpace& space : spaces_) specs_.push_back(section_spec(space, round));
    own_.write(specs_, input, dtypes_, gather_.own(own_.find(specs_, input)));
    known_.clear();
    gather_.run(exchange, largest_message_bytes(specs_),
                [&](Rank worker, std::span<const std::byte> bytes) { return read(worker, bytes); });
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      summation_.sum(received_, i, specs_[i].range, spaces_[i].dtype, spaces_[i].width, scale_,
                     sums_[i].of(round), &known_);
    }
  }

  Traffic traffic(std::span<const IndexSets> sets) const override {
    Traffic traffic(size_);
    for (const Round round : Round::all(rounds_)) {
      std::vector<std::int64_t> bytes;
      for (const Rank owner : Ranks(size_)) {
        std::vector<SectionSpec> specs;
        std::vector<SectionCounts> counts;
        for (std::size_t i = 0; i < spaces_.size(); ++i) {
          specs.push_back(section_spec(spaces_[i], round));
          const auto rows = std::ssize(indices_in(sets[i][owner.index()], specs[i].range));
          counts.push_back({rows, rows});
        }
        bytes.push_back(message_bytes(specs, counts));
      }
      count_gather(pattern_, bytes, traffic);
    }
    return traffic;
  }

 private:
  MessageGather::Extent read(Rank worker, std::span<const std::byte> bytes) {
    ReceivedRows& received = received_[worker.index()];
    // In a hierarchy, other messages may follow.
    if (pattern_ == Communication::hierarchy)
      return summation_.read_leading(specs_, bytes, received);
    summation_.read_all(specs_, std::array{bytes}, {&received, 1}, known_);
    counts_.clear();
    for (const ConstSection& section : received.sections) counts_.push_back(section.counts);
    return {std::ssize(bytes), index_bytes(specs_, counts_)};
  }

  Communication pattern_;
  std::vector<DType> dtypes_;
  std::vector<SectionSpec> specs_;  // sections of the round
  std::vector<SectionCounts> counts_;
  KnownNumbers known_;
  OwnRows own_;
  MessageGather gather_;
  std::vector<ReceivedRows> received_;  // [worker]
};

Cost cost(const Workload& workload) {
  GatheredBytes bytes;
  Work work;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const SpaceStatistics& known = workload.statistics[i];
    const auto row = static_cast<double>(coo_index_bytes(workload.spaces[i].rows) +
                                         workload.spaces[i].row_bytes());
    bytes.total += workload.size * known.touched_mean * row;
    // Assumes that the smallest number of rows is as far from the mean as the largest. Exact for
    // two workers.
    bytes.smallest += std::max(0.0, 2 * known.touched_mean - known.touched_max) * row;
    bytes.largest += known.touched_max * row;
    const auto values = static_cast<double>(workload.spaces[i].row_bytes());
    const double gathered = workload.size * known.touched_mean;
    work += {.encoded_rows = known.touched_max,
             .encoded_bytes = known.touched_max * values,
             .aggregated_rows = gathered,
             .aggregated_bytes = gathered * values};
    work += work_of_union(static_cast<double>(workload.spaces[i].rows), gathered);
  }
  Cost total{
      .reduce = gather_cost(workload.options.pattern, workload.size, bytes, workload.spaces.size()),
      .gather = {}};
  total.reduce.work = work;
  return total;
}

double workspace_bytes(const Workload& workload) {
  return sum_over_spaces(workload, [&](const RowSpace& space, const SpaceStatistics& known) {
    const auto values = static_cast<double>(space.row_bytes());
    const double total = workload.size * known.touched_mean;
    // Messages and decoded indices, sums, and scratch.
    return total * (values + 4 + 8) + known.united * (values + 8) +
           static_cast<double>(unite_workspace_bytes(space.rows, static_cast<Index>(total)));
  });
}

const SchemeRegistration registration({
    .name = "all_gather",
    .summary = "all-gather of the rows, which each worker adds up (AGsparse)",
    .design = {.communication = Communication::ring,
               .aggregation = Aggregation::one_shot,
               .partition = Partition::centralization,
               .balance = Balance::none,
               .format = Format::coo},
    .create = make_scheme<AllGather>,
    .cost = cost,
    .workspace_bytes = workspace_bytes,
    .heeds = {SchemeOption::pattern},
});

}  // namespace
}  // namespace sparsesync
