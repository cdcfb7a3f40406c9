#include "schemes/two_level/between_nodes.h"

#include <algorithm>
#include <string>

#include "schemes/registry.h"

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

/// Adds the statistics of another tensor in the same row space.
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

}  // namespace

IndexRange Division::rows(std::size_t space, int place, Round round) const {
  return round.part_of(nodes.range(spaces[space].rows, place));
}

BucketSpec spec_between(const Division& division, const SchemeOptions& options, int place,
                        Round round) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < division.spaces.size(); ++i) {
    const RowSpace& space = division.spaces[i];
    tensors.push_back({std::to_string(i), std::max<Index>(1, division.rows(i, place, round).size()),
                       space.width, sum_dtype(space.dtype)});
  }
  return {"between", std::move(tensors), options.between_nodes, Reduction::sum, 1, options};
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
      spec_(spec_between(division, bucket.options, place, round)),
      crossing_(on_wire(spec_)),
      spaces_(row_spaces(crossing_.tensors)),
      scheme_(scheme_named(spec_.scheme)
                  .create({context, &crossing_, Rank{node}, division.nodes.count(), seed})) {}

void BetweenNodes::adapt(const Division& division, const Statistics& statistics) {
  scheme_->adapt(statistics_between(division, spaces_, place_, round_.count, statistics));
}

std::vector<IndexSets> BetweenNodes::sets_of(const Division& division,
                                             std::span<const IndexSets> sets,
                                             std::vector<OwnedIndexSets>& storage) const {
  storage.assign(spaces_.size(), OwnedIndexSets(static_cast<std::size_t>(division.nodes.count())));
  std::vector<IndexSets> all;
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    for (const RowSpace::Member& member : spaces_[i].members) {
      const auto of_nodes = node_sets(sets[member.tensor], division.nodes,
                                      division.rows(member.tensor, place_, round_));
      for (std::size_t node = 0; node < of_nodes.size(); ++node) {
        for (const Index row : of_nodes[node]) storage[i][node].push_back(member.first_row + row);
      }
    }
    all.push_back(views_of(storage[i]));
  }
  return all;
}

}  // namespace sparsesync
