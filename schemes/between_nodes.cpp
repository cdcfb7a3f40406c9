#include "schemes/between_nodes.h"

#include <algorithm>
#include <string>

namespace sparsesync {
namespace {

SpaceStatistics a_share(SpaceStatistics statistics, int shares) {
  if (shares == 1) return statistics;
  for (double* number : {&statistics.touched_mean, &statistics.touched_max, &statistics.united}) {
    *number /= shares;
  }
  statistics.blocks.clear();
  return statistics;
}

/// Of tensors that share a row space, which are touched as they are.
void join(SpaceStatistics& to, const SpaceStatistics& from) {
  const auto mean = [](double a, double of_a, double b, double of_b) {
    return of_a + of_b > 0 ? (a * of_a + b * of_b) / (of_a + of_b) : 1;
  };
  to.push_skewness = mean(to.push_skewness, to.touched_mean, from.push_skewness, from.touched_mean);
  to.pull_skewness = mean(to.pull_skewness, to.united, from.pull_skewness, from.united);
  to.touched_mean += from.touched_mean;
  to.touched_max += from.touched_max;
  to.united += from.united;
  to.blocks.clear();
}

BucketSpec spec_of(const BucketSpec& bucket, std::vector<TensorSpec> tensors) {
  return {bucket.name, std::move(tensors), bucket.options.between_nodes, Reduction::sum,
          1,           bucket.options};
}

}  // namespace

IndexRange Division::rows(std::size_t space, int place, Round round) const {
  const IndexRange range = nodes.range(spaces[space].rows, place);
  const IndexRange part = round.part_of(range.size());
  return {range.begin + part.begin, range.begin + part.end};
}

std::vector<TensorSpec> tensors_between(const Division& division, int place, Round round) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < division.spaces.size(); ++i) {
    const RowSpace& space = division.spaces[i];
    tensors.push_back({std::to_string(i), std::max<Index>(1, division.rows(i, place, round).size()),
                       space.width, sum_dtype(space.dtype)});
  }
  return tensors;
}

Statistics statistics_between(const Division& division, std::span<const RowSpace> spaces, int place,
                              int rounds, const Statistics& statistics) {
  Statistics all;
  for (const RowSpace& space : spaces) {
    std::optional<SpaceStatistics> joined;
    for (const RowSpace::Member& member : space.members) {
      const SpaceStatistics of_member =
          a_share(range_statistics(statistics[member.tensor], division.spaces[member.tensor].rows,
                                   division.nodes, place),
                  rounds);
      if (joined) {
        join(*joined, of_member);
      } else {
        joined = of_member;
      }
    }
    all.push_back(*joined);
  }
  return all;
}

BetweenNodes::BetweenNodes(const Context& context, const Division& division,
                           const BucketSpec& bucket, int place, Round round, int node,
                           std::uint64_t seed)
    : place_(place),
      round_(round),
      spec_(spec_of(bucket, tensors_between(division, place, round))),
      spaces_(row_spaces(spec_.tensors)),
      scheme_(scheme_named(spec_.scheme)
                  .create({context, &spec_, Rank{node}, division.nodes.count(), seed})) {}

void BetweenNodes::adapt(const Division& division, const Statistics& statistics) {
  scheme_->adapt(statistics_between(division, spaces_, place_, round_.count, statistics));
}

std::vector<IndexSets> BetweenNodes::sets_of(
    const Division& division, std::span<const IndexSets> sets,
    std::vector<std::vector<std::vector<Index>>>& storage) const {
  storage.assign(spaces_.size(),
                 std::vector<std::vector<Index>>(static_cast<std::size_t>(division.nodes.count())));
  std::vector<IndexSets> all;
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    for (const RowSpace::Member& member : spaces_[i].members) {
      const auto of_nodes = node_sets(sets[member.tensor], division.nodes,
                                      division.rows(member.tensor, place_, round_));
      for (std::size_t node = 0; node < of_nodes.size(); ++node) {
        for (const Index row : of_nodes[node]) storage[i][node].push_back(member.first_row + row);
      }
    }
    all.emplace_back(storage[i].begin(), storage[i].end());
  }
  return all;
}

}  // namespace sparsesync
