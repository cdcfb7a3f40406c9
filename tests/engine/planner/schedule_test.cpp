// Properties of schedules, for any model, costs and paces of workers. Each schedule synchronizes
// every gradient once per step, and never before it is ready. No forward pass uses a weight before
// its gather phase.
#include "engine/planner/schedule/policies.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/planner/schedule/schedule_simulator.h"
#include "kernels/base/error.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using testing::seed;

/// Layers of several kinds, some of which announce their rows, with costs that are affine in bytes.
struct Case {
  std::vector<ScheduledLayer> layers;
  std::array<BucketSeconds, 2> start_and_rate;  // seconds per bucket, seconds per byte

  BucketCosts costs() const {
    return [this](LayerRange range) {
      double bytes = 0;
      for (int layer = range.first; layer <= range.last; ++layer) bytes += at(layer).bytes;
      const auto& [start, rate] = start_and_rate;
      const bool announces = at(range.first).announces;
      return BucketSeconds{announces ? start.announce + rate.announce * bytes : 0,
                           start.reduce + rate.reduce * bytes, start.gather + rate.gather * bytes};
    };
  }
  const ScheduledLayer& at(int layer) const { return layers[static_cast<std::size_t>(layer)]; }
};

Case some_case(Random& random) {
  Case some;
  const auto count = 1 + random.below(random.below(4) == 0 ? 40 : 8);
  const double pace = std::pow(10, 2 * random.uniform() - 1);
  const bool announce = random.below(2) == 0;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    const int kind = random.below(5) == 0 ? 1 : 0;
    // Sometimes zero.
    const auto some_seconds = [&] { return random.below(6) == 0 ? 0 : random.uniform() * pace; };
    some.layers.push_back({some_seconds(), 2 * some_seconds(),
                           random.below(8) == 0 ? 0 : 1e6 * random.uniform(), kind,
                           announce && kind == 1});
  }
  const auto seconds = [&](double most) {
    return BucketSeconds{random.uniform() * most, random.uniform() * most, random.uniform() * most};
  };
  some.start_and_rate = {seconds(0.5), seconds(1e-6)};
  return some;
}

/// Checks consecutive steps of a worker and its link for faults.
class Faults {
 public:
  Faults(const Case& given, const Schedule& schedule)
      : given_(given), schedule_(schedule), gathered_(schedule.buckets.size()) {}

  /// Returns the first fault, or "" if there is none.
  std::string in(const std::vector<StepTimeline>& steps) {
    std::string fault = in_buckets();
    for (const StepTimeline& step : steps) {
      if (fault.empty()) fault = in_passes(step);
      if (fault.empty()) fault = in_transfers(step);
    }
    return fault;
  }

 private:
  static bool is_before(double one, double other) { return one < other - kRounding; }

  std::string in_buckets() const {
    std::vector<int> times(given_.layers.size());
    for (const LayerRange range : schedule_.buckets) {
      for (int layer = range.first; layer <= range.last; ++layer) {
        ++times[static_cast<std::size_t>(layer)];
        if (given_.at(layer).kind != given_.at(range.first).kind) return "layer kinds are mixed";
      }
    }
    return std::ranges::all_of(times, [](int count) { return count == 1; })
               ? ""
               : "a layer is not in exactly one bucket";
  }

  std::string in_passes(const StepTimeline& step) {
    for (std::size_t bucket = schedule_.buckets.size(); bucket-- > 0;) {
      const double needed =
          schedule_.under_forward ? gathered_[bucket] : *std::ranges::max_element(gathered_);
      const LayerRange range = schedule_.buckets[bucket];
      for (int layer = range.first; layer <= range.last; ++layer) {
        const TimeSpan& span = step.forward[static_cast<std::size_t>(layer)];
        if (is_before(span.begin, needed)) return "a weight is used before its gather";
        if (is_before(span.begin, worker_)) return "passes overlap";
        worker_ = span.end;
      }
    }
    for (std::size_t layer = given_.layers.size(); layer-- > 0;) {
      if (is_before(step.backward[layer].begin, worker_)) return "passes overlap";
      worker_ = step.backward[layer].end;
    }
    return "";
  }

  std::string in_transfers(const StepTimeline& step) {
    if (step.crossed.size() != schedule_.order.size()) return "a phase of the order is missing";
    std::vector<std::array<int, kPhases>> seen(schedule_.buckets.size());
    std::vector<std::array<double, kPhases>> ended(schedule_.buckets.size());
    for (std::size_t place = 0; place < schedule_.order.size(); ++place) {
      const auto [bucket, phase] = schedule_.order[place];
      const TimeSpan& span = step.crossed[place];
      if (is_before(span.begin, link_)) return "two transfers overlap";
      link_ = span.end;
      const double takes = given_.costs()(schedule_.buckets[bucket]).of(phase);
      if (std::abs(span.seconds() - takes) > kRounding) return "a phase has a wrong duration";
      std::string fault = in_phase(step, bucket, phase, span, ended[bucket]);
      if (!fault.empty()) return fault;
      ++seen[bucket][index(phase)];
      ended[bucket][index(phase)] = span.end;
    }
    for (std::size_t bucket = 0; bucket < seen.size(); ++bucket) {
      const int announces = given_.at(schedule_.buckets[bucket].first).announces ? 1 : 0;
      if (seen[bucket] != std::array<int, kPhases>{announces, 1, 1}) return "a wrong phase count";
      gathered_[bucket] = ended[bucket][index(Phase::gather)];
    }
    return "";
  }

  /// @param ended  end times of the bucket's phases so far
  std::string in_phase(const StepTimeline& step, std::size_t bucket, Phase phase,
                       const TimeSpan& span, const std::array<double, kPhases>& ended) const {
    if (phase == Phase::gather && is_before(span.begin, ended[index(Phase::reduce)])) {
      return "a gather phase precedes its reduce phase";
    }
    if (phase != Phase::reduce) return "";
    const auto first = static_cast<std::size_t>(schedule_.buckets[bucket].first);
    if (is_before(span.begin, step.backward[first].end)) {
      return "a gradient is sent before it is ready";
    }
    if (schedule_.after_backward && is_before(span.begin, step.backward.front().end)) {
      return "a gradient is sent during the backward pass";
    }
    return is_before(span.begin, ended[index(Phase::announce)])
               ? "a gradient is sent before its rows"
               : "";
  }

  static std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

  static constexpr double kRounding = 1e-9;
  const Case& given_;
  const Schedule& schedule_;
  std::vector<double> gathered_;  // end of the gather phase in the previous step, by bucket
  double worker_ = 0;             // end of the worker's computation so far
  double link_ = 0;               // end of the link's transfers so far
};

std::string fault_in(const Case& given, const Schedule& schedule,
                     const std::vector<StepTimeline>& steps) {
  return Faults(given, schedule).in(steps);
}

std::vector<StepTimeline> some_steps(const Case& given, const Schedule& schedule, Random& random) {
  const auto workers = static_cast<std::size_t>(1 + random.below(4));
  StepClock clock(given.layers, given.costs(), schedule, workers);
  std::vector<StepTimeline> steps(4);
  std::vector<double> paces(workers, 1);
  const bool alike = random.below(2) == 0;
  for (StepTimeline& step : steps) {
    for (double& pace : paces) pace = alike ? 1 : 0.5 + random.uniform();
    clock.step(paces, &step);
  }
  return steps;
}

TEST(Schedules, SynchronizeEveryGradientOnceBetweenItsComputationAndItsUse) {
  Random random(seed());
  for (int round = 0; round < 200; ++round) {
    const Case given = some_case(random);
    const BucketCosts costs = given.costs();
    ScheduleQuestion question{given.layers, costs};
    if (random.below(2) == 0) question.full_bytes = 1e6 * 3 * random.uniform();
    for (const SchedulePolicy& policy : schedule_policies()) {
      SCOPED_TRACE(::testing::Message() << policy.name << ", round " << round);
      const Schedule schedule = policy.plan(question);
      ASSERT_NO_THROW(check_schedule(schedule, given.layers.size()));
      ASSERT_EQ(fault_in(given, schedule, some_steps(given, schedule, random)), "");
    }
  }
}

TEST(Schedules, FaultsAreDetected) {
  Random random(seed());
  Case given;
  for (int layer = 0; layer < 3; ++layer) given.layers.push_back({1, 2, 1e6, 0, true});
  given.start_and_rate = {BucketSeconds{0.1, 0.5, 0.5}, BucketSeconds{}};
  const BucketCosts costs = given.costs();
  const Schedule schedule = schedule_policy_named("dear").plan({given.layers, costs, 1.0});
  ASSERT_EQ(schedule.buckets.size(), 3U);
  const std::vector<StepTimeline> steps = some_steps(given, schedule, random);
  ASSERT_EQ(fault_in(given, schedule, steps), "");
  const auto place_of = [&](std::size_t bucket, Phase phase) {
    return static_cast<std::size_t>(
        std::ranges::find(schedule.order, ScheduledPhase{bucket, phase}) - schedule.order.begin());
  };
  const auto with = [&](auto&& change) {
    std::vector<StepTimeline> changed = steps;
    change(changed);
    return fault_in(given, schedule, changed);
  };
  EXPECT_EQ(with([&](auto& s) {
              s[0].crossed[place_of(0, Phase::reduce)] = {3, 3.5};
            }),
            "a gradient is sent before it is ready");
  EXPECT_EQ(with([&](auto& s) { s[2].forward[0].begin -= 0.2; }),
            "a weight is used before its gather");
  EXPECT_EQ(with([&](auto& s) { s[1].crossed.pop_back(); }), "a phase of the order is missing");
  EXPECT_EQ(with([&](auto& s) { s[1].backward[0].begin -= 1; }), "passes overlap");
  Schedule twice = schedule;
  twice.order[place_of(1, Phase::gather)].bucket = 0;
  EXPECT_EQ(fault_in(given, twice, some_steps(given, twice, random)), "a wrong phase count");
}

TEST(Schedules, AreRejectedIfIncomplete) {
  const std::vector<ScheduledLayer> layers(3, {1, 2, 10});
  const Schedule whole = one_after_another(layers, {{1, 2}, {0, 0}});
  ASSERT_NO_THROW(check_schedule(whole, 3));
  EXPECT_THROW(check_schedule(whole, 4), InputError);
  const auto refused = [&](auto&& change) {
    Schedule changed = whole;
    change(changed);
    EXPECT_THROW(check_schedule(changed, 3), InputError);
  };
  refused([](Schedule& s) { std::swap(s.buckets[0], s.buckets[1]); });
  refused([](Schedule& s) { s.buckets[0].last = 1; });
  refused([](Schedule& s) { s.buckets[1].last = 1; });
  refused([](Schedule& s) { s.buckets.pop_back(); });
  refused([](Schedule& s) { s.order.pop_back(); });
  refused([](Schedule& s) { s.order.push_back(s.order.front()); });
  refused([](Schedule& s) { std::swap(s.order[0], s.order[1]); });
  refused([](Schedule& s) { s.order[0].bucket = 2; });
}

TEST(Schedules, AutoIsNoWorseThanAnyOther) {
  Random random(seed());
  for (int round = 0; round < 100; ++round) {
    const Case given = some_case(random);
    const BucketCosts costs = given.costs();
    const ScheduleQuestion question{given.layers, costs};
    double least = std::numeric_limits<double>::infinity();
    for (const SchedulePolicy& policy : schedule_policies()) {
      const double seconds = step_seconds(given.layers, costs, policy.plan(question));
      if (policy.name == "auto") {
        EXPECT_LE(seconds, least * (1 + 1e-9)) << "round " << round;
      }
      least = std::min(least, seconds);
    }
  }
}

TEST(Schedules, NothingRunsDuringTheForwardPassIfNotAllowed) {
  const std::vector<ScheduledLayer> layers(6, {1, 2, 1e6});
  const BucketCosts costs = [](LayerRange range) {
    return BucketSeconds{0, 0.1 + 1.4 * range.size(), 0.1 + 1.4 * range.size()};
  };
  ScheduleQuestion question{layers, costs};
  const SchedulePolicy& policy = schedule_policy_named("auto");
  EXPECT_TRUE(policy.plan(question).under_forward);
  question.may_go_on_under_forward = false;
  EXPECT_FALSE(policy.plan(question).under_forward);
}

TEST(Schedules, HaveTheirDocumentedNames) {
  std::vector<std::string> names;
  for (const SchedulePolicy& policy : schedule_policies()) names.emplace_back(policy.name);
  EXPECT_EQ(names, (std::vector<std::string>{"sequential", "wfbp", "merge_all", "mg_wfbp",
                                             "mg_wfbp_exact", "lazy", "dear", "auto"}));
  try {
    schedule_policy_named("wbfp");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("wfbp"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sparsesync
