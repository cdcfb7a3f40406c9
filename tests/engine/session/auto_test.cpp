// The scheme `auto`: all workers choose the scheme that the planner predicts to be the fastest.
// Sums are correct in every step, the steady state exchanges no extra messages, and drift is
// detected.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "engine/planner/scheme/plan.h"
#include "engine/session/registered_bucket.h"
#include "schemes/registry.h"
#include "tests/engine/session/session_cases.h"
#include "tests/support/networks.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

constexpr Network kSlow{50e-6, 200e6};     // bytes dominate
constexpr Network kDistant{50e-3, 100e9};  // sequential messages dominate

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

/// Creates a step of an `auto` bucket with one tensor, of which each worker touches `rows` rows.
Case step_of(Random& random, const TensorSpec& tensor, int size, Index rows) {
  return {{"b", {tensor}, "auto"}, size, random, rows};
}

/// Runs steps with `auto` and returns the scheme that each step used.
/// @param adapt  whether to adapt after the first step
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

/// Returns whether a scheme sends dense messages if all rows are touched.
bool is_dense(const std::string& label) {
  return label.starts_with("dense_") || label.starts_with("dynamic_split");
}

TEST(Auto, chooses_the_planners_choice_for_all_index_sets) {
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
          plan({spaces, size, statistics, network, options}).front().variant.label();
      const std::vector<std::string> labels = schemes_of(steps, with(network));
      EXPECT_EQ(labels, (std::vector<std::string>{"balanced", best, best})) << size;
      EXPECT_EQ(schemes_of(steps, with(network), true), labels) << size;
    }
  }
}

TEST(Auto, chooses_dense_for_dense_gradients_and_few_messages_for_high_latency) {
  const TensorSpec tensor{"t", 20'000, 4, DType::f32};
  Random random(seed());
  const std::vector<Case> all(2, step_of(random, tensor, 4, 20'000));
  EXPECT_TRUE(is_dense(schemes_of(all, with(kQuick)).back()));
  const std::vector<Case> few(2, step_of(random, tensor, 4, 3));
  // One sequential message.
  EXPECT_EQ(schemes_of(few, with(kDistant)).back(), "all_gather (point_to_point)");
}

TEST(Auto, detects_a_drift_and_otherwise_keeps_its_choice) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  std::vector<Case> steps;
  for (int i = 0; i < 4; ++i) steps.push_back(step_of(random, tensor, 4, 40 + i));
  for (int i = 0; i < 3; ++i) steps.push_back(step_of(random, tensor, 4, 4'000));
  const std::vector<std::string> labels = schemes_of(steps, with(kQuick));
  // The first step is recorded. The fifth shows the drift, and the sixth is recorded.
  EXPECT_EQ(labels[1], labels[4]);
  EXPECT_FALSE(is_dense(labels[1]));
  EXPECT_EQ(labels[5], labels[4]);
  EXPECT_TRUE(is_dense(labels[6])) << labels[6];
}

TEST(Auto, tries_variants_if_processors_dominate_and_then_keeps_its_choice) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  constexpr int kTrials = 3;
  constexpr std::size_t kLongestTrials = 2 + 40 * kTrials;
  const std::vector<Case> steps(kLongestTrials + 5, step_of(random, tensor, 4, 400));
  const std::vector<std::string> labels = schemes_of(steps, with_trials(kQuick, kTrials));
  EXPECT_EQ(labels[0], "balanced");
  // The tried variants, the lengths of their trials and the choice depend on measured times.
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
  // If bytes dominate, there is nothing to try.
  const std::vector<std::string> slow = schemes_of(steps, with_trials(kSlow, kTrials));
  EXPECT_EQ(std::set<std::string>(slow.begin() + 1, slow.end()).size(), 1U);
}

TEST(Auto, follows_its_trials) {
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
          ASSERT_LT(++steps, 5000) << "trials never end";
        } while (!session.settled(id) || steps == 1);
        const std::vector<Prediction> predictions = session.predictions(id);
        EXPECT_EQ(session.chosen(id), predictions.front().variant);
        // No doubt is left: every variant that may be faster has been tried.
        EXPECT_TRUE(worth_a_trial(predictions).empty());
        EXPECT_TRUE(
            std::any_of(predictions.begin(), predictions.end(),
                        [](const Prediction& prediction) { return prediction.trials > 0; }));
      },
      with_trials(kQuick, 100)));
}

TEST(Auto, exchanges_no_extra_messages_in_steady_state) {
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
            EXPECT_GT(sent, messages) << "no review took place";
          }
        }
      },
      with(kSlow)));
}

TEST(Auto, plans_with_the_smallest_workspace_and_the_network_of_worker_0) {
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
    // If no scheme fits, the first choice is kept.
    EXPECT_EQ(chosen, (std::set<std::string>{little ? "balanced" : "all_gather (point_to_point)"}));
  }
}

TEST(Auto, measures_the_network_if_none_is_given) {
  const TensorSpec tensor{"t", 100, 4, DType::f32};
  Random random(seed());
  const std::vector<Case> steps(2, step_of(random, tensor, 2, 10));
  LocalLink link{1e9, 100e-6};  // shaped, so that the probe has something to measure
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

/// Rows cost much more than dense elements, so `dense_direct` is the fastest.
constexpr Network kRowsAreSlow{
    .latency_s = 1e-6,
    .rate_bps = 25e9,
    .host = {.aggregate_s_per_row = 1e-3, .sort_s_per_row = 1e-3, .own_s_per_row = 1e-3}};

/// Processors dominate so much that every trial has the minimum number of steps.
constexpr Network kProcessorsAreSlow{
    .latency_s = 1e-6,
    .rate_bps = 25e9,
    .host = {.aggregate_s_per_row = 1e-4, .message_s = 1e-2, .step_s = 1e-2}};
constexpr int kShortestTrial = 3;  // steps

/// `dense_direct` is the fastest for few rows, but others may be as fast.
constexpr Network kDenseIsInDoubt{
    .latency_s = 1e-6,
    .rate_bps = 25e9,
    .host = {.aggregate_s_per_row = 3e-3, .message_s = 1e-2, .step_s = 1e-2}};

bool has_trials(const std::vector<Prediction>& predictions) {
  return std::ranges::any_of(predictions,
                             [](const Prediction& prediction) { return prediction.trials > 0; });
}

/// Returns the prediction for a scheme without a communication pattern.
Prediction prediction_for(Session& session, BucketId id, const std::string& scheme) {
  const std::vector<Prediction> predictions = session.predictions(id);
  const Prediction* const found = prediction_of(predictions, {scheme});
  EXPECT_NE(found, nullptr) << scheme;
  return found == nullptr ? Prediction{} : *found;
}

TEST(Auto, adapt_reviews_recorded_rows_at_once_or_else_records_the_next_step) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case first = step_of(random, tensor, 3, 100);
  const Case second = step_of(random, tensor, 3, 110);  // too few for a drift
  expect_no_errors(run_sessions(
      3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(first.spec);
        EXPECT_TRUE(session.settled(id));  // sampling
        first.synchronize(session, id);
        EXPECT_FALSE(session.settled(id));  // rows are recorded
        EXPECT_TRUE(session.predictions(id).empty());
        session.adapt(id);
        EXPECT_TRUE(session.settled(id));
        const double seconds = prediction_for(session, id, "dense_ring").seconds;
        const double of_owned = prediction_for(session, id, "owned").seconds;
        second.synchronize(session, id);
        EXPECT_TRUE(session.settled(id));
        session.adapt(id);  // the next step is recorded
        EXPECT_TRUE(session.settled(id));
        EXPECT_EQ(prediction_for(session, id, "owned").seconds, of_owned);
        second.synchronize(session, id);
        EXPECT_FALSE(session.settled(id));
        EXPECT_EQ(prediction_for(session, id, "owned").seconds, of_owned);
        second.synchronize(session, id);
        EXPECT_TRUE(session.settled(id));
        EXPECT_GT(prediction_for(session, id, "owned").seconds, of_owned);
        EXPECT_GT(prediction_for(session, id, "dense_ring").seconds, seconds);
      },
      with(kQuick)));
}

TEST(Auto, reviews_again_after_1000_steps_if_a_dense_result_hides_the_drift) {
  constexpr int kLongest = 1000;
  const TensorSpec tensor{"t", 200, 4, DType::f32};
  Random random(seed());
  const Case few = step_of(random, tensor, 2, 10);
  const Case many = step_of(random, tensor, 2, 100);
  expect_no_errors(run_sessions(
      2,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(few.spec);
        few.synchronize(session, id);
        double of_few = 0;
        for (int step = 1; step <= kLongest; ++step) {
          many.synchronize(session, id);
          ASSERT_TRUE(session.settled(id)) << "step " << step;
          ASSERT_EQ(session.chosen(id).label(), "dense_direct") << "step " << step;
          if (step == 1) of_few = prediction_for(session, id, "owned").seconds;
        }
        many.synchronize(session, id);
        EXPECT_FALSE(session.settled(id));
        EXPECT_EQ(prediction_for(session, id, "owned").seconds, of_few);
        many.synchronize(session, id);
        EXPECT_TRUE(session.settled(id));
        EXPECT_GT(prediction_for(session, id, "owned").seconds, 5 * of_few);
      },
      with(kRowsAreSlow)));
}

TEST(Auto, adapt_interrupts_a_trial_and_reviews_a_complete_one_at_once) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 100);
  expect_no_errors(run_sessions(
      3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(step.spec);
        const auto run_step_on_trial = [&](const SchemeVariant& trialed) {
          step.synchronize(session, id);
          EXPECT_FALSE(session.settled(id));
          EXPECT_FALSE(has_trials(session.predictions(id)));
          EXPECT_EQ(session.chosen(id), trialed);
        };
        step.synchronize(session, id);
        step.synchronize(session, id);  // reviews rows, then runs the first step of a trial
        EXPECT_FALSE(session.settled(id));
        const SchemeVariant first = session.chosen(id);
        run_step_on_trial(first);
        session.adapt(id);
        EXPECT_FALSE(session.settled(id));
        EXPECT_EQ(session.chosen(id), first);
        run_step_on_trial(first);  // is recorded; otherwise it would complete the trial
        // The review of its rows starts a new trial of the same scheme.
        for (int i = 0; i < kShortestTrial; ++i) run_step_on_trial(first);
        session.adapt(id);
        EXPECT_TRUE(has_trials(session.predictions(id)));
        step.synchronize(session, id);
      },
      with_trials(kProcessorsAreSlow, 2)));
}

TEST(Auto, ends_a_trial_after_its_steps) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 100);
  expect_no_errors(run_sessions(
      3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(step.spec);
        step.synchronize(session, id);
        for (int i = 0; i < kShortestTrial; ++i) {
          step.synchronize(session, id);
          EXPECT_FALSE(session.settled(id)) << i;
          EXPECT_FALSE(has_trials(session.predictions(id))) << i;
        }
        step.synchronize(session, id);
        EXPECT_TRUE(session.settled(id));  // only one trial is allowed
        EXPECT_TRUE(has_trials(session.predictions(id)));
      },
      with_trials(kProcessorsAreSlow, 1)));
}

TEST(Auto, neither_records_nor_counts_a_refused_step) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 100);
  Case refused = step;
  refused.inputs[1][0].indices.back() = tensor.rows;
  expect_no_errors(run_sessions(
      3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(step.spec);
        const auto refuse_step = [&] {
          const std::vector<Gradient> gradients = refused.of(session);
          if (session.rank() == Rank{1}) {
            EXPECT_THROW(session.synchronize(id, gradients), InputError);
          } else {
            EXPECT_THROW(session.synchronize(id, gradients), RefusedError);
          }
        };
        refuse_step();
        EXPECT_TRUE(session.settled(id));  // sampling
        step.synchronize(session, id);
        EXPECT_FALSE(session.settled(id));
        refuse_step();  // refused after the review at its start
        EXPECT_FALSE(session.predictions(id).empty());
        for (int i = 0; i < kShortestTrial; ++i) {
          step.synchronize(session, id);
          EXPECT_FALSE(session.settled(id)) << i;
          EXPECT_FALSE(has_trials(session.predictions(id))) << i;
        }
        refuse_step();
        EXPECT_TRUE(has_trials(session.predictions(id)));
        EXPECT_TRUE(session.settled(id));
      },
      with_trials(kProcessorsAreSlow, 1)));
}

SessionStart start_with_budget(Rank rank, std::int64_t budget, Network network, int trials) {
  return {.options = with_trials(network, trials),
          .budget = rank == Rank{1} ? std::optional(budget) : std::nullopt};
}

/// A budget in bytes: a few rows fit, the dense tensor of 4,000 x 8 elements does not.
constexpr std::int64_t kLessThanDense = 100'000;

/// Returns whether a scheme works without memory for the dense tensor.
bool needs_few_rows(const SchemeVariant& variant) {
  return !variant.scheme.starts_with("dense_") && variant.scheme != "two_level";
}

TEST(Auto, adopts_another_scheme_if_a_worker_lacks_memory_for_the_fastest) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 10);
  expect_no_errors(run_sessions(
      local_workers("local", {}), 3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(step.spec);
        step.synchronize(session, id);
        for (int review = 0; review < 2; ++review) {
          step.synchronize(session, id);
          EXPECT_TRUE(session.settled(id));
          // Each review of rows considers it again, because other rows may need less memory.
          const std::vector<Prediction> predictions = session.predictions(id);
          EXPECT_EQ(predictions[0].variant.label(), "dense_direct");
          EXPECT_EQ(predictions[0].ruled_out, "");
          const auto next = std::ranges::find_if(predictions, needs_few_rows, &Prediction::variant);
          ASSERT_NE(next, predictions.end());
          EXPECT_EQ(session.chosen(id), next->variant);
          session.adapt(id);
          step.synchronize(session, id);
        }
      },
      [](Rank rank) { return start_with_budget(rank, kLessThanDense, kRowsAreSlow, 0); }));
}

TEST(Auto, tries_another_scheme_if_a_worker_lacks_memory_for_the_first) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  Random random(seed());
  const Case step = step_of(random, tensor, 3, 10);
  expect_no_errors(run_sessions(
      local_workers("local", {}), 3,
      [&](Session& session, HostMemory&) {
        const BucketId id = session.register_bucket(step.spec);
        step.synchronize(session, id);
        step.synchronize(session, id);
        const std::vector<SchemeVariant> candidates = worth_a_trial(session.predictions(id));
        const auto next = std::ranges::find_if(candidates, needs_few_rows);
        ASSERT_NE(next, candidates.end());
        EXPECT_EQ(candidates.front().label(), "dense_direct");
        for (int i = 1; i < kShortestTrial; ++i) {
          EXPECT_FALSE(session.settled(id));
          EXPECT_EQ(session.chosen(id), *next);
          step.synchronize(session, id);
        }
        step.synchronize(session, id);
        EXPECT_TRUE(session.settled(id));
        EXPECT_TRUE(has_trials(session.predictions(id)));
        EXPECT_EQ(prediction_for(session, id, "dense_direct").ruled_out,
                  "a worker lacks memory for it");
        EXPECT_FALSE(session.chosen(id).label().starts_with("dense_"));
      },
      [](Rank rank) { return start_with_budget(rank, kLessThanDense, kDenseIsInDoubt, 1); }));
}

TEST(Auto, plans_without_the_rows_of_a_worker_that_cannot_record_them) {
  const TensorSpec tensor{"t", 4'000, 8, DType::f32};
  // Two dense tensors, for sums and addends, and the 4,000 indices of a gradient.
  constexpr std::int64_t kBudget = 300'000;
  constexpr int kSize = 3;
  Random random(seed());
  const Case few = step_of(random, tensor, kSize, 10);
  Case many = step_of(random, tensor, kSize, 10);
  // Rows in decreasing order must be coalesced before they are recorded. `dense_direct` itself does
  // not need that.
  std::vector<Index> rows = distinct_rows(random, tensor.rows, tensor.rows);
  std::ranges::reverse(rows);
  Case added = step_of(random, tensor, kSize, 0);
  added.inputs = many.inputs;
  added.inputs[1][0] = random_gradient(random, tensor, rows);
  for (const auto& of_worker : added.inputs) added.sums[0].add(of_worker[0]);
  const std::vector<RowSpace> spaces = row_spaces(std::array{tensor});
  SchemeOptions options;
  options.workers_per_node = kSize;
  const auto expected_for = [&](const IndexSets& sets) {
    const Statistics statistics{statistics_of(sets, spaces[0], options)};
    return plan({.spaces = spaces,
                 .size = kSize,
                 .statistics = statistics,
                 .network = kRowsAreSlow,
                 .options = options});
  };
  IndexSets sets;
  for (const auto& of_worker : added.inputs) sets.emplace_back(of_worker[0].indices);
  std::ranges::reverse(rows);
  sets[1] = rows;
  const std::vector<Prediction> with_all = expected_for(sets);
  sets[1] = {};
  const std::vector<Prediction> without = expected_for(sets);
  for (const bool is_short : {false, true}) {
    const std::vector<Prediction>& expected = is_short ? without : with_all;
    expect_no_errors(run_sessions(
        local_workers("local", {}), kSize,
        [&](Session& session, HostMemory&) {
          const BucketId id = session.register_bucket(few.spec);
          few.synchronize(session, id);
          few.synchronize(session, id);
          ASSERT_EQ(session.chosen(id).label(), "dense_direct");
          session.adapt(id);
          added.synchronize(session, id);
          session.adapt(id);
          const std::vector<Prediction> predictions = session.predictions(id);
          ASSERT_EQ(predictions.size(), expected.size());
          for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(predictions[i].variant, expected[i].variant);
            EXPECT_EQ(predictions[i].seconds, expected[i].seconds) << expected[i].variant.label();
          }
        },
        [&](Rank rank) {
          return start_with_budget(rank, is_short ? kBudget : 10'000'000, kRowsAreSlow, 0);
        }));
  }
  EXPECT_NE(prediction_of(with_all, {"owned"})->seconds,
            prediction_of(without, {"owned"})->seconds);
}

}  // namespace
}  // namespace sparsesync::testing
