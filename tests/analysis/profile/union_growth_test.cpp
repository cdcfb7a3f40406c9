// The growth of the union. Up to the size of the trace it is the mean over all choices of workers,
// compared with enumeration. Beyond that it is compared with the rows of more workers.
#include "analysis/profile/union_growth.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "schemes/statistics.h"
#include "tests/support/index_sets.h"

namespace sparsesync::testing {
namespace {

std::vector<CountedRow> counted(const std::vector<OwnedIndexSets>& steps) {
  TouchCounts counts;
  for (const OwnedIndexSets& sets : steps) {
    for (const auto& set : sets) {
      std::vector<CountedRow> once;
      for (const Index row : set) once.push_back({row, 1});
      counts.add(once);
    }
  }
  return {counts.rows().begin(), counts.rows().end()};
}

UnionGrowth growth_of(Index rows, const std::vector<OwnedIndexSets>& steps) {
  std::vector<CountedRow> in_steps;
  for (const OwnedIndexSets& sets : steps) {
    const auto of_step = counted({sets});
    in_steps.insert(in_steps.end(), of_step.begin(), of_step.end());
  }
  const std::int64_t workers = std::ssize(steps.front());
  return {rows,
          {counts_of_counts(in_steps), workers},
          static_cast<int>(steps.size()),
          {counts_of_counts(counted(steps)), workers * std::ssize(steps)}};
}

/// Computes the mean union over all choices of `chosen` of the sets.
double over_all_choices(const OwnedIndexSets& sets, int chosen) {
  double sum = 0;
  int choices = 0;
  for (unsigned choice = 0; choice < 1U << sets.size(); ++choice) {
    if (std::popcount(choice) != chosen) continue;
    std::set<Index> united;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if ((choice >> i & 1U) != 0) united.insert(sets[i].begin(), sets[i].end());
    }
    sum += static_cast<double>(united.size());
    ++choices;
  }
  return sum / choices;
}

TEST(UnionGrowth, is_the_mean_over_all_choices_of_workers_in_a_step) {
  Random random(seed());
  const std::vector<OwnedIndexSets> steps{random_sets(random, 100, 6, 20),
                                          random_sets(random, 100, 6, 5)};
  const UnionGrowth growth = growth_of(100, steps);
  for (int workers = 1; workers <= 6; ++workers) {
    const double expected =
        (over_all_choices(steps[0], workers) + over_all_choices(steps[1], workers)) / 2;
    EXPECT_NEAR(growth.united(workers), expected, 1e-9) << workers;
  }
}

TEST(UnionGrowth, continues_with_the_growth_of_the_union_over_steps) {
  Random random(seed());
  const std::vector<OwnedIndexSets> steps{random_sets(random, 100, 3, 20),
                                          random_sets(random, 100, 3, 20),
                                          random_sets(random, 100, 3, 20)};
  OwnedIndexSets all;
  for (const OwnedIndexSets& sets : steps) all.insert(all.end(), sets.begin(), sets.end());
  const UnionGrowth growth = growth_of(100, steps);
  for (int workers = 4; workers <= 9; ++workers) {
    const double expected =
        growth.united(3) * over_all_choices(all, workers) / over_all_choices(all, 3);
    EXPECT_NEAR(growth.united(workers), expected, 1e-9) << workers;
  }
}

/// Draws the rows of each worker from Zipf's law.
OwnedIndexSets zipf_sets(Random& random, Index rows, double s, int workers, int draws) {
  std::vector<double> sums{0};
  for (Index rank = 1; rank <= rows; ++rank) {
    sums.push_back(sums.back() + std::pow(static_cast<double>(rank), -s));
  }
  OwnedIndexSets sets;
  for (int worker = 0; worker < workers; ++worker) {
    std::set<Index> set;
    for (int i = 0; i < draws; ++i) {
      const auto above = std::upper_bound(sums.begin(), sums.end(), random.uniform() * sums.back());
      set.insert(above - sums.begin() - 1);
    }
    sets.emplace_back(set.begin(), set.end());
  }
  return sets;
}

TEST(UnionGrowth, predicts_eight_times_as_many_workers_within_10_percent) {
  Random random(seed());
  for (const double s : {0.0, 0.8, 1.1, 1.4}) {
    const OwnedIndexSets all = zipf_sets(random, 50'000, s, 64, 1000);
    const OwnedIndexSets eight(all.begin(), all.begin() + 8);
    const double truth = growth_of(50'000, {all}).united(64);
    EXPECT_NEAR(growth_of(50'000, {eight}).united(64) / truth, 1, 0.1) << "s = " << s;
  }
}

TEST(UnionGrowth, rises_no_faster_than_workers_and_never_beyond_the_rows) {
  Random random(seed());
  for (const int workers : {1, 2, 3, 4, 7, 16}) {
    const UnionGrowth growth = growth_of(300, {random_sets(random, 300, workers, 30)});
    double last = growth.united(1);
    for (double many = 2; many <= 65'536; many *= 2) {
      const double united = growth.united(many);
      EXPECT_GE(united, last * (1 - 1e-12)) << workers << " workers, extrapolated to " << many;
      EXPECT_LE(united, std::min(300.0, 2 * last) * (1 + 1e-12));
      last = united;
    }
  }
}

TEST(UnionGrowth, of_shared_rows_is_constant_and_of_no_rows_is_0) {
  const OwnedIndexSets same(4, {3, 5, 8});
  EXPECT_NEAR(growth_of(100, {same}).united(1000), 3, 1e-9);
  const OwnedIndexSets none(4);
  EXPECT_EQ(growth_of(100, {none}).united(2), 0);
  EXPECT_EQ(growth_of(100, {none}).united(1000), 0);
}

TEST(UnionGrowth, of_one_worker_and_one_step_assumes_equally_likely_rows) {
  const OwnedIndexSets one{{3, 5, 8}};
  const UnionGrowth growth = growth_of(100, {one});
  EXPECT_NEAR(growth.united(1), 3, 1e-12);
  EXPECT_NEAR(growth.united(4), 100 * (1 - std::pow(0.97, 4)), 1e-9)
      << "one worker shows nothing about shared rows";
  EXPECT_NEAR(growth.united(1000), 100, 1e-9);
}

}  // namespace
}  // namespace sparsesync::testing
