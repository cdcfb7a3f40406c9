// The executor: every schedule moves every gradient once a step, exactly, and no layer of a forward
// pass is come to before its result.
#include "engine/executor.h"

#include <map>
#include <string>
#include <vector>

#include "engine/planner/schedule/model_costs.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "engine/session/control_channel.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

// Costs known beforehand: nothing is measured, and plans are the same in every run.
constexpr Network kNetwork{100e-6, 1e9, {}};

SessionOptions session_options() {
  SessionOptions options{kDeadline, 1};
  options.network = kNetwork;
  options.trials = 0;
  return options;
}

/// Dense and sparse layers in turn, of several shapes and types.
std::vector<ExecutedLayer> mixed_layers() {
  return {{{"embedding", 300, 8, DType::f32}, true, 20},
          {{"first", 7, 9, DType::f32}},
          {{"second", 40, 1, DType::f32}},
          {{"table", 1000, 2, DType::f32}, true, 30},
          {{"table of f64", 50, 4, DType::f64}, true, 5},
          {{"half", 33, 1, DType::f16}},
          {{"third", 1, 1, DType::f32}},
          {{"fourth", 64, 4, DType::f32}}};
}

/// What one worker does in a step: the gradients that it has, by layer; none where it uses it not.
using Gradients = std::vector<std::optional<OwnedGradient>>;

/// The same on all workers: gradients of all of them.
/// @param unused  one layer in so many is not used by a worker; 0: all are
std::vector<Gradients> random_step(Random& random, const std::vector<ExecutedLayer>& layers,
                                   int workers, Index unused) {
  std::vector<Gradients> all(static_cast<std::size_t>(workers));
  for (Gradients& own : all) {
    for (const ExecutedLayer& layer : layers) {
      const TensorSpec& tensor = layer.tensor;
      if (unused > 0 && random.below(unused) == 0) {
        own.emplace_back();
      } else if (layer.rows_cross) {
        own.emplace_back(random_gradient(
            random, tensor, distinct_rows(random, tensor.rows, random.below(tensor.rows / 4))));
      } else {
        std::vector<Index> rows;
        for (Index row = 0; row < tensor.rows; ++row) rows.push_back(row);
        own.emplace_back(random_gradient(random, tensor, rows));
        own.back()->layout = Gradient::Layout::dense;
      }
    }
  }
  return all;
}

/// As a bucket has the layer's tensor.
TensorSpec crossing(const ExecutedLayer& layer) {
  TensorSpec tensor = layer.tensor;
  if (!layer.rows_cross) {
    tensor.rows *= tensor.width;
    tensor.width = 1;
  }
  return tensor;
}

/// Looks at what an executor tells while it trains.
class Training {
 public:
  Training(Session& session, std::vector<ExecutedLayer> layers, const ExecutorOptions& options)
      : layers_(layers),
        told_(layers.size()),
        executor_(session, std::move(layers), options,
                  [this](std::size_t layer, const TensorResult& result) { take(layer, result); }),
        rank_(static_cast<std::size_t>(session.rank().value)) {}

  /// One step, as a model does it.
  /// @param forwards  layers in the order in which the forward pass comes to them
  void step(std::vector<Gradients> all, const std::vector<std::size_t>& forwards) {
    const bool announces = executor_has_announces();
    for (const std::size_t layer : forwards) {
      executor_.forward(layer);
      EXPECT_EQ(told_[layer], steps_) << layers_[layer].tensor.name << " is used before its result";
      if (announces && !announced_[layer] && all[rank_][layer]) {
        executor_.announce(layer, all[rank_][layer]->indices);
        announced_[layer] = true;
      }
    }
    executor_.backward();
    EXPECT_EQ(told_, std::vector<int>(layers_.size(), steps_));
    sums_.clear();
    for (const ExecutedLayer& layer : layers_) sums_.emplace_back(crossing(layer));
    for (const Gradients& own : all) {
      for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (own[layer]) sums_[layer].add(*own[layer]);
      }
    }
    ++steps_;
    read_ = std::move(all[rank_]);
    for (std::size_t layer = layers_.size(); layer-- > 0;) {
      if (read_[layer]) executor_.ready(layer, read_[layer]->view());
    }
    executor_.end_backward();
    announced_.clear();
  }

  void finish() {
    executor_.synchronize();
    EXPECT_EQ(told_, std::vector<int>(layers_.size(), steps_));
  }

  Executor& executor() { return executor_; }

 private:
  bool executor_has_announces() const {
    return std::ranges::any_of(
        executor_.planner().schedule().order,
        [](const ScheduledPhase& each) { return each.phase == Phase::announce; });
  }

  void take(std::size_t layer, const TensorResult& result) {
    ++told_[layer];
    EXPECT_EQ(told_[layer], steps_) << layers_[layer].tensor.name;
    EXPECT_EQ(sums_[layer].difference(result), "") << layers_[layer].tensor.name;
  }

  std::vector<ExecutedLayer> layers_;
  std::vector<int> told_;  // [layer]: results so far
  int steps_ = 0;
  std::map<std::size_t, bool> announced_;
  std::vector<ExactSum> sums_;  // of the last step
  Gradients read_;              // until its results are there
  Executor executor_;
  std::size_t rank_;
};

std::vector<std::size_t> in_order(std::size_t layers) {
  std::vector<std::size_t> order(layers);
  for (std::size_t i = 0; i < layers; ++i) order[i] = i;
  return order;
}

ExecutorOptions by(std::string_view schedule) {
  ExecutorOptions options;
  options.planning.schedule = schedule;
  return options;
}

/// On a worker's own clock: no phase before what it needs is there, and no use of a layer before
/// its result.
void expect_in_order(const Executor& executor) {
  const Schedule& schedule = executor.planner().schedule();
  const std::span<const StepTimeline> steps = executor.timelines();
  ASSERT_FALSE(steps.empty());
  for (std::size_t step = 0; step < steps.size(); ++step) {
    ASSERT_EQ(steps[step].crossed.size(), schedule.order.size());
    double free = 0;
    double backward_ended = 0;
    for (const TimeSpan& span : steps[step].backward) {
      backward_ended = std::max(backward_ended, span.end);
    }
    for (std::size_t place = 0; place < schedule.order.size(); ++place) {
      const auto [bucket, phase] = schedule.order[place];
      const TimeSpan& span = steps[step].crossed[place];
      EXPECT_LE(free, span.begin) << "two phases at a time";
      EXPECT_LE(span.begin, span.end);
      free = span.end;
      const LayerRange range = schedule.buckets[bucket];
      for (int i = range.first; i <= range.last; ++i) {
        const auto layer = static_cast<std::size_t>(i);
        if (phase == Phase::reduce) {
          EXPECT_LE(steps[step].backward[layer].end, span.begin);
          if (schedule.after_backward) {
            EXPECT_LE(backward_ended, span.begin);
          }
        } else if (phase == Phase::gather && step + 1 < steps.size()) {
          EXPECT_LE(span.end, steps[step + 1].forward[layer].begin);
        }
      }
    }
  }
}

TEST(Executor, every_schedule_moves_every_gradient_once_a_step) {
  for (const SchedulePolicy& policy : schedule_policies()) {
    for (const int size : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::string(policy.name) + ", " + std::to_string(size) + " workers");
      expect_no_errors(run_sessions(
          size,
          [&](Session& session, HostMemory&) {
            Training training(session, mixed_layers(), by(policy.name));
            Random random(seed());
            for (int step = 0; step < 4; ++step) {
              training.step(random_step(random, mixed_layers(), size, 0),
                            in_order(mixed_layers().size()));
            }
            training.finish();
            expect_in_order(training.executor());
          },
          session_options()));
    }
  }
}

TEST(Executor, layers_that_are_not_used_used_twice_or_out_of_order) {
  constexpr int kSize = 3;
  for (const SchedulePolicy& policy : schedule_policies()) {
    SCOPED_TRACE(std::string(policy.name));
    expect_no_errors(run_sessions(
        kSize,
        [&](Session& session, HostMemory&) {
          const std::vector<ExecutedLayer> layers = mixed_layers();
          Training training(session, layers, by(policy.name));
          Random random(seed() + 1);
          for (int step = 0; step < 6; ++step) {
            std::vector<std::size_t> forwards;
            const Index uses = random.below(2 * std::ssize(layers));
            for (Index i = 0; i < uses; ++i) {
              forwards.push_back(static_cast<std::size_t>(random.below(std::ssize(layers))));
            }
            training.step(random_step(random, layers, kSize, 3), forwards);
          }
          training.finish();
        },
        session_options()));
  }
}

/// Times with which it pays to merge some layers and not others.
std::vector<ExecutedLayer> timed_layers() {
  std::vector<ExecutedLayer> layers;
  for (int i = 0; i < 12; ++i) {
    layers.push_back({{"layer " + std::to_string(i), 1000 * (1 + i % 4), 1, DType::f32},
                      false,
                      0,
                      {},
                      1e-4,
                      2e-4});
  }
  return layers;
}

TEST(Executor, runs_what_the_policy_plans_for_the_simulator) {
  constexpr int kSize = 2;
  Model model{"timed", {}};
  for (const ExecutedLayer& layer : timed_layers()) {
    model.layers.push_back({layer.tensor.name, layer.forward_s, layer.backward_s,
                            static_cast<double>(4 * layer.tensor.rows)});
    model.layers.back().group = static_cast<int>(DType::f32);
  }
  CrossingOptions crossing_by;
  crossing_by.network = kNetwork;
  const ModelCosts costs(model, kSize, crossing_by);
  const BucketCosts of_buckets = costs.costs();
  std::map<std::size_t, int> numbers;  // of buckets
  for (const SchedulePolicy& policy : schedule_policies()) {
    SCOPED_TRACE(std::string(policy.name));
    const Schedule planned = policy.plan({costs.layers(), of_buckets});
    ++numbers[planned.buckets.size()];
    expect_no_errors(run_sessions(
        kSize,
        [&](Session& session, HostMemory&) {
          Training training(session, timed_layers(), by(policy.name));
          const SchedulePlanner& planner = training.executor().planner();
          EXPECT_EQ(planner.schedule(), planned);
          ASSERT_TRUE(planner.expected().has_value());
          EXPECT_DOUBLE_EQ(planner.expected()->iteration_s,
                           step_seconds(costs.layers(), of_buckets, planned));
          Random random(seed() + 2);
          for (int step = 0; step < 3; ++step) {
            training.step(random_step(random, timed_layers(), kSize, 0),
                          in_order(timed_layers().size()));
          }
          training.finish();
        },
        session_options()));
  }
  EXPECT_GE(numbers.size(), 3U) << "the times do not tell schedules apart";
}

TEST(Executor, measures_and_plans_anew_while_it_trains) {
  constexpr int kSize = 3;
  for (const std::string schedule : {"mg_wfbp_exact", "dear", "auto"}) {
    SCOPED_TRACE(schedule);
    expect_no_errors(run_sessions(
        kSize,
        [&](Session& session, HostMemory&) {
          Training training(session, mixed_layers(), by(schedule));
          EXPECT_FALSE(training.executor().planner().expected().has_value());
          Random random(seed() + 3);
          for (int step = 0; step < 16; ++step) {
            training.step(random_step(random, mixed_layers(), kSize, 0),
                          in_order(mixed_layers().size()));
          }
          training.finish();
          ASSERT_TRUE(training.executor().planner().expected().has_value());
          EXPECT_GT(training.executor().planner().expected()->communication_s, 0);
          const ExecutorStatistics statistics = training.executor().statistics();
          EXPECT_EQ(statistics.steps, 16);
          EXPECT_GT(statistics.iteration_s, 0);
          EXPECT_GT(statistics.communication_s(), 0);
        },
        session_options()));
  }
}

TEST(Executor, rows_are_announced_under_the_forward_pass) {
  for (const std::string schedule : {"wfbp", "dear", "sequential"}) {
    for (const int size : {1, 3}) {
      SCOPED_TRACE(schedule + ", " + std::to_string(size) + " workers");
      expect_no_errors(run_sessions(
          size,
          [&](Session& session, HostMemory&) {
            ExecutorOptions options = by(schedule);
            options.planning.announce = true;
            options.planning.scheme = "owned";
            Training training(session, mixed_layers(), options);
            std::size_t announces = 0;
            for (const ScheduledPhase& each : training.executor().planner().schedule().order) {
              announces += each.phase == Phase::announce ? 1 : 0;
            }
            EXPECT_EQ(announces > 0, size > 1);
            Random random(seed() + 4);
            for (int step = 0; step < 4; ++step) {
              training.step(random_step(random, mixed_layers(), size, step == 2 ? 4 : 0),
                            in_order(mixed_layers().size()));
            }
            training.finish();
          },
          session_options()));
    }
  }
}

TEST(Executor, workers_whose_layers_come_in_other_orders_are_told_both) {
  const std::vector<std::exception_ptr> errors = run_sessions(
      3,
      [](Session& session, HostMemory&) {
        std::vector<ExecutedLayer> layers = mixed_layers();
        if (session.rank() == Rank{2}) std::swap(layers[1], layers[2]);
        const Executor executor(session, layers, {}, [](std::size_t, const TensorResult&) {});
      },
      session_options());
  for (const std::exception_ptr& error : errors) {
    EXPECT_THROW(std::rethrow_exception(error), AgreementError);
    const std::string text = text_of(error);
    EXPECT_NE(text.find("layer 1 of the forward pass"), std::string::npos) << text;
    EXPECT_NE(text.find("'first'"), std::string::npos) << text;
    EXPECT_NE(text.find("'second'"), std::string::npos) << text;
  }
}

TEST(Executor, no_layers_and_unknown_names_are_refused) {
  const auto refused = [](const ExecutorOptions& options, std::vector<ExecutedLayer> layers) {
    const std::vector<std::exception_ptr> errors = run_sessions(
        2,
        [&](Session& session, HostMemory&) {
          const Executor executor(session, layers, options,
                                  [](std::size_t, const TensorResult&) {});
        },
        session_options());
    for (const std::exception_ptr& error : errors) {
      EXPECT_THROW(std::rethrow_exception(error), InputError);
    }
    return text_of(errors.front());
  };
  EXPECT_NE(refused({}, {}).find("no layers"), std::string::npos);
  EXPECT_NE(refused(by("soon"), mixed_layers()).find("mg_wfbp_exact"), std::string::npos);
  ExecutorOptions unknown;
  unknown.planning.scheme = "fast";
  EXPECT_NE(refused(unknown, mixed_layers()).find("balanced"), std::string::npos);
}

/// A planner's model: layers that are alike.
Model even_model(int layers, double bytes) {
  Model model{"even", {}};
  for (int i = 0; i < layers; ++i) model.layers.push_back({std::to_string(i), 0, 0, bytes});
  return model;
}

TEST(SchedulePlanner, goes_by_medians_and_stays_with_what_is_as_good) {
  constexpr int kLayers = 10;
  expect_no_errors(run_sessions(
      2,
      [](Session& session, HostMemory&) {
        PlannerOptions options;
        options.schedule = "mg_wfbp_exact";
        // At 1 Gbit/s a layer takes 0.8 ms to cross and 0.2 ms to start.
        SchedulePlanner planner(session, even_model(kLayers, 1e5), options);
        EXPECT_EQ(planner.schedule().buckets.size(), 1U);  // 1 MB: less than a bucket is full with
        const std::vector<double> forward(kLayers, 1e-3);
        const std::vector<double> slow(kLayers, 5e-3);
        const std::vector<double> fast(kLayers, 1e-6);
        int steps = 0;
        const auto train = [&](const std::vector<double>& backward) {
          bool is_due = false;
          while (!is_due) {
            // One step in five is like no other.
            is_due = planner.add_step(
                forward, ++steps % 5 == 0 ? std::vector<double>(kLayers, 9.0) : backward);
            ASSERT_LT(steps, 1000);
          }
        };
        train(slow);
        EXPECT_TRUE(planner.review());
        // Each layer crosses under the next: only the last one is exposed.
        EXPECT_EQ(planner.schedule().buckets.size(), static_cast<std::size_t>(kLayers));
        EXPECT_NEAR(planner.expected()->compute_s, kLayers * 6e-3, 1e-9);
        EXPECT_NEAR(planner.expected()->exposed_s, planner.expected()->communication_s / kLayers,
                    1e-9);
        train(slow);
        EXPECT_FALSE(planner.review());
        train(fast);
        EXPECT_TRUE(planner.review());
        EXPECT_LT(planner.schedule().buckets.size(), 3U);
        EXPECT_NEAR(planner.expected()->compute_s, kLayers * 1.001e-3, 1e-9);
      },
      session_options()));
}

TEST(SchedulePlanner, what_was_observed_of_rows_makes_them_cost_less_or_more) {
  expect_no_errors(run_sessions(
      2,
      [](Session& session, HostMemory&) {
        Model model{"sparse", {}};
        model.layers.push_back({"table", 1e-3, 2e-3, 0, SparseGradient{1'000'000, 64, 1000}});
        SchedulePlanner planner(session, model, {});
        const double before = planner.expected()->communication_s;
        planner.observe(0, 100'000, 150'000);
        const std::vector<double> seconds(1, 1e-3);
        while (!planner.add_step(seconds, seconds)) {
        }
        planner.review();
        EXPECT_GT(planner.expected()->communication_s, 20 * before);
        EXPECT_EQ(planner.model().layers[0].sparse->densification.at(2), 1.5);
      },
      session_options()));
}

TEST(SchedulePlanner, a_scheme_whose_cost_is_not_told_is_planned_for_all_the_same) {
  expect_no_errors(run_sessions(
      2,
      [](Session& session, HostMemory&) {
        Model model{"sparse", {}};
        model.layers.push_back({"table", 1e-3, 2e-3, 0, SparseGradient{1'000'000, 64, 1000}});
        PlannerOptions options;
        options.scheme = "sparse_ps";
        const SchedulePlanner planner(session, model, options);
        EXPECT_GT(planner.expected()->communication_s, 0);
      },
      session_options()));
}

}  // namespace
}  // namespace sparsesync::testing
