// The scheme `auto`: all workers choose the same, what the planner says is best; sums are right
// throughout; nothing is told in steady state; drift is seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "engine/planner/scheme/plan.h"
#include "engine/session/registered_bucket.h"
#include "schemes/registry.h"
#include "sparsesync/bucket.h"
#include "tests/engine/session/session_cases.h"
#include "tests/support/networks.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

constexpr Network kSlow{50e-6, 200e6};     // bytes dominate
constexpr Network kDistant{50e-3, 100e9};  // messages in turn dominate

SessionOptions with(Network network) {
  SessionOptions options{kDeadline, 1};
  options.network = network;
  options.trials = 0;
  return options;
}
SessionOptions with_trials(Network network, int trials) {
  SessionOptions options = with(network);
  options.trials = trials;
  return options;
}

/// A step of a bucket of `auto` with one tensor, of which each worker touches so many rows.
Case step_of(Random& random, const TensorSpec& tensor, int size, Index rows) {
  return {{"b", {tensor}, "auto"}, size, random, rows};
}

/// Runs steps with `auto` and gives, for each of them, the scheme that it crossed by.
/// @param adapt  whether the choice is asked for after the first one
std::vector<std::string> schemes_of(const std::vector<Case>& steps, const SessionOptions& options,
                                    bool adapt = false) {
  const auto size = static_cast<int>(steps.front().inputs.size());
  std::mutex mutex;
  std::set<std::vector<std::string>> seen;
  expect_no_errors(run_sessions(
      size,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(steps.front().spec);
        std::vector<std::string> labels;
        for (const Case& step : steps) {
          step.synchronize(session, id);
          labels.push_back(session.chosen(id).label());
          if (adapt && labels.size() == 1) session.adapt(id);
        }
        session.barrier();
        const std::lock_guard lock(mutex);
        seen.insert(labels);
      },
      options));
  EXPECT_EQ(seen.size(), 1U) << "workers chose differently";
  return *seen.begin();
}

/// Of schemes whose messages are dense where all rows are touched.
bool is_dense(const std::string& label) {
  return label == "dense_ring" || label.find("dynamic_split") == 0;
}

TEST(Auto, takes_what_the_planner_says_from_all_index_sets) {
  const TensorSpec tensor{"t", 20'000, 32, DType::f32};
  for (const int size : {1, 2, 4, 7, 8}) {
    for (const Network& network : {kSlow, kDistant}) {
      Random random(seed());
      const std::vector<Case> steps(3, step_of(random, tensor, size, 300));
      IndexSets sets;
      for (const auto& of_worker : steps[0].inputs) sets.emplace_back(of_worker[0].indices);
      const std::vector<RowSpace> spaces = row_spaces(std::array{tensor});
      SchemeOptions options;
      options.workers_per_node = size;  // threads are all on one node
      const Statistics statistics{statistics_of(sets, spaces[0], options)};
      const std::string best =
          plan({spaces, size, statistics, network, options}).front().way.label();
      const std::vector<std::string> labels = schemes_of(steps, with(network));
      EXPECT_EQ(labels, (std::vector<std::string>{"balanced", best, best})) << size;
      EXPECT_EQ(schemes_of(steps, with(network), true), labels) << size;
    }
  }
}

TEST(Auto, takes_dense_where_all_is_touched_and_few_messages_where_they_are_slow) {
  const TensorSpec tensor{"t", 20'000, 4, DType::f32};
  Random random(seed());
  const std::vector<Case> all(2, step_of(random, tensor, 4, 20'000));
  EXPECT_TRUE(is_dense(schemes_of(all, with(kQuick)).back()));
  const std::vector<Case> few(2, step_of(random, tensor, 4, 3));
  // One message in turn.
  EXPECT_EQ(schemes_of(few, with(kDistant)).back(), "all_gather (point_to_point)");
}

TEST(Auto, sees_a_drift_and_otherwise_stays) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  std::vector<Case> steps;
  for (int i = 0; i < 4; ++i) steps.push_back(step_of(random, tensor, 4, 40 + i));
  for (int i = 0; i < 3; ++i) steps.push_back(step_of(random, tensor, 4, 4'000));
  const std::vector<std::string> labels = schemes_of(steps, with(kQuick));
  // The first step is looked at; the fifth shows the drift, the sixth is looked at.
  EXPECT_EQ(labels[1], labels[4]);
  EXPECT_FALSE(is_dense(labels[1]));
  EXPECT_EQ(labels[5], labels[4]);
  EXPECT_TRUE(is_dense(labels[6])) << labels[6];
}

TEST(Auto, tries_ways_where_processors_decide_and_then_stays) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  constexpr int kTrials = 3;
  constexpr std::size_t kLongestTrials = 2 + 40 * kTrials;
  const std::vector<Case> steps(kLongestTrials + 5, step_of(random, tensor, 4, 400));
  const std::vector<std::string> labels = schemes_of(steps, with_trials(kQuick, kTrials));
  EXPECT_EQ(labels[0], "balanced");
  // Which are tried, and how long, and which is taken, depends on what they take.
  std::size_t changes = 0;
  std::size_t stays = 1;
  for (std::size_t step = 2; step < labels.size(); ++step) {
    const bool changed = labels[step] != labels[step - 1];
    if (changed) {
      ++changes;
      EXPECT_GE(stays, 3U) << "step " << step;
    }
    stays = changed ? 1 : stays + 1;
  }
  EXPECT_LE(changes, std::size_t{kTrials});
  EXPECT_GT(stays, 5U);
  // Where bytes decide there is nothing to try.
  const std::vector<std::string> slow = schemes_of(steps, with_trials(kSlow, kTrials));
  EXPECT_EQ(std::set<std::string>(slow.begin() + 1, slow.end()).size(), 1U);
}

TEST(Auto, goes_by_what_its_trials_showed) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 400);
  expect_no_errors(run_sessions(
      3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(step.spec);
        int steps = 0;
        do {
          step.synchronize(session, id);
          ASSERT_LT(++steps, 5000) << "never settles";
        } while (!session.settled(id) || steps == 1);
        const std::vector<Prediction> predictions = session.predictions(id);
        EXPECT_EQ(session.chosen(id), predictions.front().way);
        // No doubt is left: whatever may be faster was tried.
        EXPECT_TRUE(worth_a_trial(predictions).empty());
        EXPECT_TRUE(
            std::any_of(predictions.begin(), predictions.end(),
                        [](const Prediction& prediction) { return prediction.trials > 0; }));
      },
      with_trials(kQuick, 100)));
}

TEST(Auto, tells_nothing_in_steady_state) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const std::vector<Case> steps(6, step_of(random, tensor, 5, 100));
  expect_no_errors(run_sessions(
      5,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(steps.front().spec);
        for (std::size_t step = 0; step < steps.size(); ++step) {
          const TransportCounters before = session.counters();
          steps[step].synchronize(session, id);
          std::int64_t messages = 0;
          for (const Phase phase : {Phase::reduce, Phase::gather}) {
            for (const Step& of_pattern : scheme_of(session, id).pattern(phase)) {
              messages += static_cast<std::int64_t>(of_pattern.to.size());
            }
          }
          const std::int64_t sent = session.counters().messages_sent - before.messages_sent;
          if (step != 1) {
            EXPECT_EQ(sent, messages) << "step " << step;
          } else {
            EXPECT_GT(sent, messages) << "no review";
          }
        }
      },
      with(kSlow)));
}

TEST(Auto, plans_with_the_least_workspace_and_the_network_of_worker_0) {
  const TensorSpec tensor{"t", 20'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 100);
  for (const bool little : {false, true}) {
    std::mutex mutex;
    std::set<std::string> chosen;
    const auto start = [&](Rank rank) {
      SessionStart of_worker{with(rank == Rank{0} ? kDistant : kSlow)};
      of_worker.options.workspace = little && rank == Rank{1} ? 10 : 1e9;
      return of_worker;
    };
    expect_no_errors(run_sessions(
        local_workers("local", {}), 3,
        [&](Session& session, HostMemory&) {
          const BucketId id = session.register_bucket(step.spec);
          for (int i = 0; i < 3; ++i) step.synchronize(session, id);
          EXPECT_EQ(session.predictions(id).front().ruled_out.empty(), !little);
          session.barrier();
          const std::lock_guard lock(mutex);
          chosen.insert(session.chosen(id).label());
        },
        start));
    // What nothing fits it stays with.
    EXPECT_EQ(chosen, (std::set<std::string>{little ? "balanced" : "all_gather (point_to_point)"}));
  }
}

TEST(Auto, measures_the_network_where_nobody_says_what_it_is) {
  const TensorSpec tensor{"t", 100, 4, DType::f32};
  Random random(seed());
  const std::vector<Case> steps(2, step_of(random, tensor, 2, 10));
  LocalLink link{1e9, 100e-6};  // shaped, so that there is something to measure
  expect_no_errors(
      run_sessions(local_workers("local", link), 2, [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(steps.front().spec);
        for (const Case& step : steps) step.synchronize(session, id);
        ASSERT_FALSE(session.predictions(id).empty());
        EXPECT_GT(session.predictions(id).front().seconds, 50e-6);
        session.barrier();
      }));
}

TEST(Auto, announces_to_schemes_that_use_it) {
  const TensorSpec tensor{"t", 2'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 4, 100);
  expect_no_errors(run_sessions(
      4,
      [&](Session& session, HostMemory&) {
        const auto rank = static_cast<std::size_t>(session.rank().value);
        BucketSpec spec = step.spec;
        spec.announce = true;
        const BucketId id = session.register_bucket(spec);
        for (int i = 0; i < 3; ++i) {
          const std::array rows{Gradient::rows(step.inputs[rank][0].indices)};
          session.wait(session.announce(id, rows));
          step.synchronize(session, id);
        }
        EXPECT_TRUE(scheme_named(session.chosen(id).scheme).heeds.has(SchemeOption::announce));
      },
      with(kSlow)));
}

}  // namespace
}  // namespace sparsesync::testing
