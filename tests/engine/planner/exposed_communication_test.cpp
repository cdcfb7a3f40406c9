// Exposed communication: phases that a schedule cannot hide, and the reasons.
#include "engine/planner/schedule/timeline.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/planner/schedule/schedule_simulator.h"

namespace sparsesync {
namespace {

/// Layers whose gradients take one second per layer and phase.
struct Case {
  std::vector<ScheduledLayer> layers;
  BucketCosts costs = [](LayerRange range) {
    return BucketSeconds{0, 1.0 * range.size(), 1.0 * range.size()};
  };

  Schedule by(const char* policy) const {
    return schedule_policy_named(policy).plan({layers, costs, 1.0});
  }
  std::vector<ExposedPhase> exposed(const char* policy) const {
    return exposed_phases(layers, costs, by(policy));
  }
};

double sum(const std::vector<ExposedPhase>& exposed) {
  double seconds = 0;
  for (const ExposedPhase& each : exposed) seconds += each.seconds;
  return seconds;
}

TEST(Exposed, IsTheTotalWaitOfAStep) {
  const Case given{{{1, 2, 10}, {1, 2, 10}, {1, 2, 10}, {1, 2, 10}}};
  for (const SchedulePolicy& policy : schedule_policies()) {
    const Schedule schedule = given.by(std::string(policy.name).c_str());
    const double waits =
        step_seconds(given.layers, given.costs, schedule) - compute_seconds(given.layers);
    const std::vector<ExposedPhase> found = exposed_phases(given.layers, given.costs, schedule);
    EXPECT_NEAR(sum(found), waits, 1e-9) << policy.name;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i > 0) {
        EXPECT_LE(found[i].seconds, found[i - 1].seconds);
      }
      EXPECT_FALSE(why_exposed(schedule, found[i].bucket, found[i].phase).empty());
    }
  }
}

TEST(Exposed, AnInputEmbeddingIsReadyLastAndNeededFirst) {
  // The communication of all other layers is hidden completely.
  const Case given{{{1, 2, 10}, {9, 18, 10}, {9, 18, 10}}};
  const Schedule schedule = given.by("dear");
  const std::vector<ExposedPhase> found = exposed_phases(given.layers, given.costs, schedule);
  ASSERT_EQ(found.size(), 2U);
  for (const ExposedPhase& each : found) {
    EXPECT_EQ(schedule.buckets[each.bucket].first, 0);
    EXPECT_NEAR(each.seconds, 1, 1e-9);
    EXPECT_EQ(why_exposed(schedule, each.bucket, each.phase),
              "its gradient is ready last and needed first, with no computation in between");
  }
}

TEST(Exposed, HasAReasonThatDependsOnTheSchedule) {
  const Case slow{{{0.1, 0.2, 10}, {0.1, 0.2, 10}, {0.1, 0.2, 10}}};
  const auto reasons = [&](const char* policy, Phase phase) {
    std::vector<std::string> found;
    const Schedule schedule = slow.by(policy);
    for (const ExposedPhase& each : slow.exposed(policy)) {
      if (each.phase == phase && schedule.buckets[each.bucket].first > 0) {
        found.emplace_back(why_exposed(schedule, each.bucket, phase));
      }
    }
    return found;
  };
  using Twice = std::vector<std::string>;
  EXPECT_EQ(reasons("sequential", Phase::reduce),
            Twice(2, "the schedule reduces after the backward pass"));
  EXPECT_EQ(reasons("wfbp", Phase::reduce),
            Twice(2, "the link still transfers it when the backward pass ends"));
  EXPECT_EQ(reasons("wfbp", Phase::gather),
            Twice(2, "the next forward pass waits for all gathers"));
  EXPECT_EQ(reasons("dear", Phase::gather),
            Twice(2, "the next forward pass needs it before the link has transferred it"));
}

TEST(Exposed, IsEmptyIfNothingIsSent) {
  const std::vector<ScheduledLayer> layers{{1, 2, 10}};
  const BucketCosts nothing = [](LayerRange) { return BucketSeconds{}; };
  EXPECT_TRUE(exposed_phases(layers, nothing, one_after_another(layers, {{0, 0}})).empty());
}

}  // namespace
}  // namespace sparsesync
