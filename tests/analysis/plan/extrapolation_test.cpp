// Sparsity for other numbers of workers. Up to the size of the trace it is measured. Beyond that it
// is extrapolated, and compared with larger traces of the same kind.
#include "analysis/plan/extrapolation.h"

#include <gtest/gtest.h>

#include <numeric>

#include "analysis/trace/generate.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

Trace drawn_trace(const Scratch& scratch, const std::string& name, int workers, int steps = 1) {
  GenerateOptions options;
  options.width = 8;
  options.workers = workers;
  options.steps = steps;
  write_trace(synthetic_trace(20'000, 0.02, 1.1, options), scratch / name, true);
  return Trace::open(scratch / name);
}

OwnedIndexSets sets_of(const Trace& trace, int step) {
  OwnedIndexSets sets;
  for (const Rank worker : Ranks(trace.header().workers)) {
    sets.push_back(trace.load_indices(worker, step).front().indices);
  }
  return sets;
}

TEST(Outlook, WithinATraceIsItsMeanOverAlignedGroupsAndSteps) {
  const Scratch scratch;
  const Trace trace = drawn_trace(scratch, "T", 6, 2);
  const Outlook outlook(trace, {}, 1 << 20);
  EXPECT_EQ(outlook.known_workers(), 6);
  EXPECT_NEAR(outlook.touched_mean(0), 400, 1e-9);
  for (const int workers : {2, 3, 4, 6}) {
    double united = 0;
    double at_least = 0;
    int groups = 0;
    for (const int step : {0, 1}) {
      const OwnedIndexSets sets = sets_of(trace, step);
      for (int begin = 0; begin + workers <= 6; begin += workers) {
        const OwnedIndexSets group(sets.begin() + begin, sets.begin() + begin + workers);
        const SpaceStatistics statistics = statistics_of(views_of(group), 20'000);
        united += statistics.united;
        at_least += statistics.sent_at_least;
        ++groups;
      }
    }
    const Statistics found = outlook.statistics(workers);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_NEAR(found.front().united, united / groups, 1e-9) << workers;
    EXPECT_NEAR(found.front().sent_at_least, at_least / groups, 1e-9) << workers;
  }
}

TEST(Outlook, BeyondATraceIsCloseToMeasurementsOfMoreWorkers) {
  const Scratch scratch;
  const Outlook from_8(drawn_trace(scratch, "few", 8), {}, 1);
  const Trace many = drawn_trace(scratch, "many", 64);
  const SpaceStatistics truth = statistics_of(views_of(sets_of(many, 0)), 20'000);
  const SpaceStatistics found = from_8.statistics(64).front();
  EXPECT_NEAR(found.touched_mean, truth.touched_mean, 1e-9);
  EXPECT_NEAR(found.united / truth.united, 1, 0.1);
  EXPECT_NEAR(found.push_skewness / truth.push_skewness, 1, 0.1);
  EXPECT_NEAR(found.pull_skewness / truth.pull_skewness, 1, 0.1);
  ASSERT_EQ(found.united_in_groups.size(), truth.united_in_groups.size());
  for (std::size_t i = 0; i < truth.united_in_groups.size(); ++i) {
    EXPECT_NEAR(found.united_in_groups[i] / truth.united_in_groups[i], 1, 0.1) << i;
  }
}

TEST(Outlook, SamplesStepsEvenly) {
  const Scratch scratch;
  const Trace trace = drawn_trace(scratch, "T", 2, 9);
  double united = 0;
  for (const int step : {0, 3, 6})
    united += statistics_of(views_of(sets_of(trace, step)), 20'000).united / 3;
  EXPECT_NEAR(Outlook(trace, {}, 3 * 800 + 799).statistics(2).front().united, united, 1e-9);
}

TEST(Outlook, IncludesBlocks) {
  const Scratch scratch;
  SchemeOptions options;
  options.block = 256;  // 32 rows
  const Outlook outlook(drawn_trace(scratch, "T", 4), options, 1);
  for (const int workers : {4, 32}) {
    const SpaceStatistics rows = outlook.statistics(workers).front();
    ASSERT_EQ(rows.blocks.size(), 1U);
    EXPECT_LE(rows.blocks.front().united, 20'000 / 32);
    EXPECT_LT(rows.blocks.front().united, rows.united);
    EXPECT_GE(rows.blocks.front().united, rows.united / 32);
  }
}

TEST(Outlook, IgnoresBlocksIfRowsAreWiderThanManyBlocks) {
  const Scratch scratch;
  TraceHeader header{{{"wide", 3, Index{1} << 40, DType::f32}}, 2, 1, "test", 1};
  TraceWriter writer(scratch / "T", header, false);
  for (const Rank worker : Ranks(2)) {
    const std::vector<TracePart> parts{{{worker.value}, {}}};
    writer.write(worker, 0, parts);
  }
  writer.commit();
  SchemeOptions options;
  options.block = 256;
  const Outlook outlook(Trace::open(scratch / "T"), options, 1);
  EXPECT_TRUE(outlook.statistics(2).front().blocks.empty());
  EXPECT_EQ(outlook.statistics(2).front().united, 2);
}

TEST(Outlook, TheBusiestWorkerTouchesAtMostTheUnion) {
  const Scratch scratch;
  // Every other worker touches nothing. The remaining workers touch the same rows.
  TraceWriter writer(scratch / "T", {{{"t", 10'000, 1, DType::f32}}, 8, 1, "test", 1}, false);
  std::vector<Index> rows(500);
  std::iota(rows.begin(), rows.end(), Index{0});
  for (const Rank worker : Ranks(8)) {
    const std::vector<TracePart> parts{{worker.value % 2 == 0 ? std::vector<Index>() : rows, {}}};
    writer.write(worker, 0, parts);
  }
  writer.commit();
  const SpaceStatistics found = Outlook(Trace::open(scratch / "T"), {}, 1).statistics(256).front();
  EXPECT_NEAR(found.united, 500, 1e-6);
  EXPECT_LE(found.touched_max, found.united);
  EXPECT_LE(found.united_in_groups.front(), found.united_in_groups.back());
}

TEST(Outlook, SkewnessBeyondATraceIsAtMostThatOfASingleRange) {
  const Scratch scratch;
  const Outlook outlook(drawn_trace(scratch, "T", 1), {}, 1);
  for (const int workers : {2, 16, 1024, 65'536}) {
    const SpaceStatistics found = outlook.statistics(workers).front();
    for (const double skewness : {found.push_skewness, found.pull_skewness}) {
      EXPECT_GE(skewness, 1);
      EXPECT_LE(skewness, workers);
    }
    EXPECT_LE(found.united, 20'000);
    EXPECT_LE(found.touched_max, 20'000);
  }
}

}  // namespace
}  // namespace sparsesync
