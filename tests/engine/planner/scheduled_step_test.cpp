// Steps of a schedule, and trainings that run them. Every schedule synchronizes every gradient
// exactly once per step, and no layer is used in a forward pass before its result is available.
#include "sparsesync/schedule.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/schedule/model_costs.h"
#include "engine/planner/schedule/schedule_simulator.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

// The costs are known in advance. Nothing is measured, so plans are the same in every run.
constexpr Network kNetwork{100e-6, 1e9, {}};

SessionOptions session_options() {
  SessionOptions options{kDeadline, 1};
  options.network = kNetwork;
  options.trials = 0;
  return options;
}

/// A layer: a tensor whose gradient becomes ready as a whole.
struct Layer {
  TensorSpec tensor;
  bool has_rows = false;  // whether touched rows are sent; otherwise all elements
  double touched = 0;     // expected number of touched rows
  // Seconds of the passes, if they are known in advance.
  double forward_s = 0;
  double backward_s = 0;
};

/// Returns dense and sparse layers in alternation, with several shapes and dtypes.
std::vector<Layer> mixed_layers() {
  return {{{"embedding", 300, 8, DType::f32}, true, 20},
          {{"first", 7, 9, DType::f32}},
          {{"second", 40, 1, DType::f32}},
          {{"table", 1000, 2, DType::f32}, true, 30},
          {{"table of f64", 50, 4, DType::f64}, true, 5},
          {{"half", 33, 1, DType::f16}},
          {{"third", 1, 1, DType::f32}},
          {{"fourth", 64, 4, DType::f32}}};
}

/// The gradients of one worker in a step, by layer. A layer that the worker does not use has none.
using Gradients = std::vector<std::optional<OwnedGradient>>;

/// Draws the gradients of all workers. The generator must have the same state on all workers.
/// @param unused  a worker does not use one in `unused` layers; 0: it uses all
std::vector<Gradients> random_step(Random& random, const std::vector<Layer>& layers, int workers,
                                   Index unused) {
  std::vector<Gradients> all(static_cast<std::size_t>(workers));
  for (Gradients& own : all) {
    for (const Layer& layer : layers) {
      const TensorSpec& tensor = layer.tensor;
      if (unused > 0 && random.below(unused) == 0) {
        own.emplace_back();
      } else if (layer.has_rows) {
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

Model model_of(const std::vector<Layer>& layers) {
  Model model;
  for (const Layer& layer : layers) {
    const TensorSpec& tensor = layer.tensor;
    ModelLayer& of_model = model.layers.emplace_back();
    of_model.name = tensor.name;
    of_model.forward_s = layer.forward_s;
    of_model.backward_s = layer.backward_s;
    of_model.group = static_cast<int>(tensor.dtype);
    if (layer.has_rows) {
      of_model.sparse = SparseGradient{tensor.rows, tensor.width, layer.touched};
    } else {
      of_model.bytes =
          static_cast<double>(tensor.rows * tensor.width * element_bytes(tensor.dtype));
    }
  }
  return model;
}

/// Returns the layer's tensor in its bucket.
TensorSpec crossing(const Layer& layer) {
  TensorSpec tensor = layer.tensor;
  if (!layer.has_rows) {
    tensor.rows *= tensor.width;
    tensor.width = 1;
  }
  return tensor;
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// A training with a schedule that checks each result. It calls the planner, the step and the
/// session in the same way as a program does.
class Training {
 public:
  Training(Session& session, std::vector<Layer> layers, const ScheduleOptions& options)
      : session_(session),
        layers_(std::move(layers)),
        options_(options),
        planner_(session, model_of(layers_), options),
        rank_(static_cast<std::size_t>(session.rank().value)),
        results_(layers_.size()),
        rows_(layers_.size()) {
    make_buckets();
  }

  /// Runs one step.
  /// @param all       gradients of all workers
  /// @param forwards  layers in the order of the forward pass
  void step(std::vector<Gradients> all, const std::vector<std::size_t>& forwards) {
    const Clock::time_point began = Clock::now();
    timelines_.push_back({std::vector<TimeSpan>(layers_.size()),
                          std::vector<TimeSpan>(layers_.size()),
                          std::vector<TimeSpan>(step_->schedule().order.size())});
    std::vector<double> forward_s = forward(all[rank_], forwards);
    sum(all);
    ++steps_;
    gradients_ = std::move(all[rank_]);
    std::vector<double> backward_s = backward();
    const bool is_due = planner_.add_step(forward_s, backward_s);
    for (const std::size_t bucket : step_->waits_after_backward(is_due)) wait(bucket);
    iterations_s_.push_back(seconds_between(began, Clock::now()));
    if (is_due) review();
  }

  /// Waits for the communication that the last step has left pending.
  void finish() {
    for (const std::size_t bucket : step_->gathers()) wait(bucket);
    EXPECT_EQ(results_, std::vector<int>(layers_.size(), steps_));
  }

  const SchedulePlanner& planner() const { return planner_; }
  /// Returns the timelines of all steps. Call it after finish().
  const std::vector<StepTimeline>& timelines() const { return timelines_; }
  /// Returns the duration of the shortest step, in seconds.
  double iteration_seconds() const { return *std::ranges::min_element(iterations_s_); }
  /// Returns the communication time of the last step, in seconds.
  double communication_seconds() const {
    double seconds = 0;
    for (const TimeSpan& span : timelines_.back().crossed) seconds += span.seconds();
    return seconds;
  }

 private:
  struct Bucket {
    BucketId id;
    std::optional<Session::Ticket> reduced;
    std::optional<Session::Ticket> gathered;
  };

  void make_buckets() {
    step_.emplace(planner_.schedule(), layers_.size());
    std::vector<BucketId> ids;
    for (std::size_t bucket = 0; bucket < step_->schedule().buckets.size(); ++bucket) {
      BucketSpec spec;
      for (const std::size_t layer : layers_of(bucket)) {
        spec.tensors.push_back(crossing(layers_[layer]));
        spec.scheme = layers_[layer].has_rows ? options_.scheme : options_.dense_scheme;
      }
      spec.name = spec.tensors.front().name;
      spec.announce = step_->announces(bucket);
      ids.push_back(session_.register_bucket(spec));
      buckets_.push_back({ids.back(), std::nullopt, std::nullopt});
    }
    session_.set_order(step_->order(ids), session_.step());
  }

  /// Returns the layers of a bucket in the order of its tensors, which is that of the backward
  /// pass.
  std::vector<std::size_t> layers_of(std::size_t bucket) const {
    const LayerRange range = step_->schedule().buckets[bucket];
    std::vector<std::size_t> layers;
    for (int layer = range.last; layer >= range.first; --layer) {
      layers.push_back(static_cast<std::size_t>(layer));
    }
    return layers;
  }

  /// @return seconds per layer
  std::vector<double> forward(const Gradients& own, const std::vector<std::size_t>& forwards) {
    std::vector<double> seconds(layers_.size());
    std::vector<char> is_announced(layers_.size());
    step_->begin_forward();
    for (const std::size_t layer : forwards) {
      wait(step_->bucket_of(layer));
      EXPECT_EQ(results_[layer], steps_)
          << layers_[layer].tensor.name << " is used before its result";
      const double began = now();
      TimeSpan& span = timelines_.back().forward[layer];
      const bool is_first = span.end == 0;
      if (is_first && layers_[layer].has_rows && own[layer]) {
        rows_[layer] = own[layer]->indices;
        is_announced[layer] = 1;
        if (const auto bucket = step_->announced(layer)) announce(*bucket);
      }
      if (is_first) span = {began, now()};
      seconds[layer] += now() - began;
    }
    for (const std::size_t bucket : step_->gathers()) wait(bucket);  // for unused layers
    EXPECT_EQ(results_, std::vector<int>(layers_.size(), steps_));
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      if (is_announced[layer] == 0) rows_[layer].clear();
    }
    for (const std::size_t bucket : step_->end_forward()) announce(bucket);
    return seconds;
  }

  /// @return seconds per layer
  std::vector<double> backward() {
    std::vector<double> seconds(layers_.size());
    double began = now();
    for (std::size_t layer = layers_.size(); layer-- > 0;) {
      if (!gradients_[layer]) continue;
      const TimeSpan& span = timelines_.back().backward[layer] = {began, now()};
      began = span.end;
      seconds[layer] = span.seconds();
      if (const auto bucket = step_->ready(layer)) submit(*bucket);
    }
    for (const std::size_t bucket : step_->end_backward()) submit(bucket);
    submitted_ = timelines_.size() - 1;
    return seconds;
  }

  void announce(std::size_t bucket) {
    wait(bucket);
    std::vector<Gradient> rows;
    for (const std::size_t layer : layers_of(bucket)) rows.push_back(Gradient::rows(rows_[layer]));
    // No wait is needed: it completes before the reduce phase that follows, which is waited for.
    static_cast<void>(session_.announce(buckets_[bucket].id, rows));
  }

  void submit(std::size_t bucket) {
    std::vector<Gradient> gradients;
    for (const std::size_t layer : layers_of(bucket)) {
      gradients.push_back(gradients_[layer] ? gradients_[layer]->view() : Gradient::empty());
    }
    Bucket& submitted = buckets_[bucket];
    submitted.reduced = session_.submit(submitted.id, Phase::reduce, gradients);
    submitted.gathered = session_.submit(submitted.id, Phase::gather);
  }

  /// Waits for the results of a bucket, if they are pending, and checks them.
  void wait(std::size_t bucket) {
    Bucket& waited = buckets_[bucket];
    if (!waited.gathered) return;
    session_.wait(*std::exchange(waited.reduced, std::nullopt));
    session_.wait(*std::exchange(waited.gathered, std::nullopt));
    const std::vector<std::size_t> layers = layers_of(bucket);
    for (std::size_t tensor = 0; tensor < layers.size(); ++tensor) {
      const std::size_t layer = layers[tensor];
      EXPECT_EQ(++results_[layer], steps_) << layers_[layer].tensor.name;
      EXPECT_EQ(sums_[layer].difference(session_.result(waited.id, tensor)), "")
          << layers_[layer].tensor.name;
    }
    const BucketUse use = session_.use(waited.id);
    const std::vector<ScheduledPhase>& order = step_->schedule().order;
    for (std::size_t place = 0; place < order.size(); ++place) {
      if (order[place].bucket != bucket) continue;
      const PhaseTime& time = use.last[static_cast<std::size_t>(order[place].phase)];
      timelines_[submitted_].crossed[place] = {at(time.began), at(time.ended)};
    }
  }

  void review() {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      if (!layers_[layers_of(bucket).front()].has_rows) continue;
      const auto observed = session_.observed(buckets_[bucket].id);
      for (const ObservedLayer& each : planner_.share(bucket, observed)) {
        planner_.observe(each.layer, each.touched, each.united);
      }
    }
    if (!planner_.review()) return;
    for (const Bucket& bucket : buckets_) session_.release_bucket(bucket.id);
    buckets_.clear();
    make_buckets();
  }

  void sum(const std::vector<Gradients>& all) {
    sums_.clear();
    for (const Layer& layer : layers_) sums_.emplace_back(crossing(layer));
    for (const Gradients& own : all) {
      for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (own[layer]) sums_[layer].add(*own[layer]);
      }
    }
  }

  double at(Clock::time_point time) const { return seconds_between(made_, time); }
  double now() const { return at(Clock::now()); }

  Session& session_;
  std::vector<Layer> layers_;
  ScheduleOptions options_;
  SchedulePlanner planner_;
  std::size_t rank_;
  std::optional<ScheduledStep> step_;
  std::vector<Bucket> buckets_;

  int steps_ = 0;
  std::vector<int> results_;              // number of results so far, by layer
  std::vector<ExactSum> sums_;            // expected results of the last step
  Gradients gradients_;                   // kept until their results have been waited for
  std::vector<std::vector<Index>> rows_;  // announced rows, by layer
  const Clock::time_point made_ = Clock::now();
  std::vector<StepTimeline> timelines_;
  std::size_t submitted_ = 0;  // index of the timeline of the step whose results are pending
  std::vector<double> iterations_s_;
};

std::vector<std::size_t> in_order(std::size_t layers) {
  std::vector<std::size_t> order(layers);
  for (std::size_t i = 0; i < layers; ++i) order[i] = i;
  return order;
}

ScheduleOptions by(std::string_view schedule) {
  ScheduleOptions options;
  options.schedule = schedule;
  return options;
}

/// Checks the times on a worker's clock: no phase starts before its input is available, and no
/// layer is used before its result.
void expect_in_order(const Training& training) {
  const Schedule& schedule = training.planner().schedule();
  const std::vector<StepTimeline>& steps = training.timelines();
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
      EXPECT_LE(free, span.begin) << "two phases overlap";
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

// ---- Single steps.

constexpr std::size_t kLayers = 5;

/// Returns a schedule with three buckets: layers 3 and 4, layers 1 and 2, and layer 0. The first
/// two buckets announce rows.
Schedule three_buckets() {
  return {{{3, 4}, {1, 2}, {0, 0}},
          {{1, Phase::announce},
           {0, Phase::announce},
           {0, Phase::reduce},
           {1, Phase::reduce},
           {2, Phase::reduce},
           {2, Phase::gather},
           {0, Phase::gather},
           {1, Phase::gather}}};
}

std::vector<std::size_t> copy(std::span<const std::size_t> buckets) {
  return {buckets.begin(), buckets.end()};
}

using Buckets = std::vector<std::size_t>;

TEST(ScheduledStep, submits_a_bucket_with_its_last_gradient_and_the_rest_after_the_pass) {
  ScheduledStep step(three_buckets(), kLayers);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(step.ready(4), std::nullopt);
    EXPECT_EQ(step.ready(1), std::nullopt);
    EXPECT_EQ(step.ready(3), 0U);
    EXPECT_EQ(step.ready(0), 2U);
    EXPECT_EQ(copy(step.end_backward()), Buckets{1});
  }
  Schedule late = three_buckets();
  late.after_backward = true;
  ScheduledStep behind(late, kLayers);
  for (std::size_t layer = kLayers; layer-- > 0;) EXPECT_EQ(behind.ready(layer), std::nullopt);
  EXPECT_EQ(copy(behind.end_backward()), (Buckets{0, 1, 2}));
}

TEST(ScheduledStep, announces_a_bucket_with_its_last_rows_and_the_rest_after_the_pass) {
  ScheduledStep step(three_buckets(), kLayers);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(step.announced(0), std::nullopt) << "its bucket does not announce";
    EXPECT_EQ(step.announced(1), std::nullopt);
    EXPECT_EQ(step.announced(2), 1U);
    EXPECT_EQ(step.announced(3), std::nullopt);
    EXPECT_EQ(copy(step.end_forward()), Buckets{0});
    EXPECT_EQ(copy(step.end_forward()), Buckets{});
    EXPECT_EQ(copy(step.end_backward()), (Buckets{0, 1, 2}));
  }
  EXPECT_EQ(step.announced(2), std::nullopt);
  step.begin_forward();  // the pass is restarted
  EXPECT_EQ(step.announced(2), std::nullopt);
  EXPECT_EQ(step.announced(1), 1U);
}

TEST(ScheduledStep, waits_only_for_layers_that_announce_in_most_steps) {
  ScheduledStep step(three_buckets(), kLayers);
  step.expect_announcements(std::array<char, kLayers>{0, 0, 1, 0, 0});
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(step.announced(2), 1U);
    EXPECT_EQ(copy(step.end_forward()), Buckets{0});
    EXPECT_EQ(copy(step.end_backward()), (Buckets{0, 1, 2}));
  }
}

TEST(ScheduledStep, orders_other_buckets_after_the_last_reduce) {
  const ScheduledStep step(three_buckets(), kLayers);
  const std::vector<BucketId> ids{{7}, {8}, {9}};
  const std::vector<OrderEntry> order = step.order(ids, std::array{BucketId{3}, BucketId{2}});
  const std::vector<OrderEntry> expected{
      {{8}, Phase::announce}, {{7}, Phase::announce}, {{7}, Phase::reduce}, {{8}, Phase::reduce},
      {{9}, Phase::reduce},   {{3}, Phase::reduce},   {{3}, Phase::gather}, {{2}, Phase::reduce},
      {{2}, Phase::gather},   {{9}, Phase::gather},   {{7}, Phase::gather}, {{8}, Phase::gather}};
  EXPECT_EQ(order, expected);
  EXPECT_EQ(step.order(ids).size(), step.schedule().order.size());
}

TEST(ScheduledStep, waits_in_the_order_of_gathers_at_once_or_during_the_next_forward_pass) {
  ScheduledStep step(three_buckets(), kLayers);
  EXPECT_EQ(copy(step.gathers()), (Buckets{2, 0, 1}));
  EXPECT_EQ(copy(step.waits_after_backward(false)), (Buckets{2, 0, 1}));
  Schedule under_forward = three_buckets();
  under_forward.under_forward = true;
  const ScheduledStep later(under_forward, kLayers);
  EXPECT_EQ(copy(later.waits_after_backward(false)), Buckets{});
  EXPECT_EQ(copy(later.waits_after_backward(true)), (Buckets{2, 0, 1}));
  EXPECT_EQ(later.bucket_of(2), 1U);
}

// ---- Trainings.

TEST(ScheduledTraining, every_schedule_synchronizes_every_gradient_once_per_step) {
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
            expect_in_order(training);
          },
          session_options()));
    }
  }
}

TEST(ScheduledTraining, layers_may_be_unused_or_used_twice_or_out_of_order) {
  constexpr int kSize = 3;
  for (const SchedulePolicy& policy : schedule_policies()) {
    SCOPED_TRACE(std::string(policy.name));
    expect_no_errors(run_sessions(
        kSize,
        [&](Session& session, HostMemory&) {
          const std::vector<Layer> layers = mixed_layers();
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

/// Returns layers with times for which merging some layers is worthwhile and merging others is not.
std::vector<Layer> timed_layers() {
  std::vector<Layer> layers;
  for (int i = 0; i < 12; ++i) {
    layers.push_back(
        {{"layer " + std::to_string(i), 1000 * (1 + i % 4), 1, DType::f32}, false, 0, 1e-4, 2e-4});
  }
  return layers;
}

TEST(ScheduledTraining, runs_the_schedule_that_the_policy_plans_for_the_simulator) {
  constexpr int kSize = 2;
  Model model{"timed", {}};
  for (const Layer& layer : timed_layers()) {
    model.layers.push_back({layer.tensor.name, layer.forward_s, layer.backward_s,
                            static_cast<double>(4 * layer.tensor.rows)});
    model.layers.back().group = static_cast<int>(DType::f32);
  }
  CrossingOptions crossing_by;
  crossing_by.network = kNetwork;
  const ModelCosts costs(model, kSize, crossing_by);
  const BucketCosts of_buckets = costs.costs();
  std::map<std::size_t, int> numbers;  // occurring numbers of buckets
  for (const SchedulePolicy& policy : schedule_policies()) {
    SCOPED_TRACE(std::string(policy.name));
    const Schedule planned = policy.plan({costs.layers(), of_buckets});
    ++numbers[planned.buckets.size()];
    expect_no_errors(run_sessions(
        kSize,
        [&](Session& session, HostMemory&) {
          Training training(session, timed_layers(), by(policy.name));
          const SchedulePlanner& planner = training.planner();
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
  EXPECT_GE(numbers.size(), 3U) << "the times do not distinguish the schedules";
}

TEST(ScheduledTraining, measures_and_replans_during_training) {
  constexpr int kSize = 3;
  for (const std::string schedule : {"mg_wfbp_exact", "dear", "auto"}) {
    SCOPED_TRACE(schedule);
    expect_no_errors(run_sessions(
        kSize,
        [&](Session& session, HostMemory&) {
          Training training(session, mixed_layers(), by(schedule));
          EXPECT_FALSE(training.planner().expected().has_value());
          Random random(seed() + 3);
          for (int step = 0; step < 16; ++step) {
            training.step(random_step(random, mixed_layers(), kSize, 0),
                          in_order(mixed_layers().size()));
          }
          training.finish();
          ASSERT_TRUE(training.planner().expected().has_value());
          EXPECT_GT(training.planner().expected()->communication_s, 0);
          EXPECT_EQ(session.step(), 16);
          EXPECT_GT(training.iteration_seconds(), 0);
          EXPECT_GT(training.communication_seconds(), 0);
        },
        session_options()));
  }
}

TEST(ScheduledTraining, rows_are_announced_during_the_forward_pass) {
  for (const std::string schedule : {"wfbp", "dear", "sequential"}) {
    for (const int size : {1, 3}) {
      SCOPED_TRACE(schedule + ", " + std::to_string(size) + " workers");
      expect_no_errors(run_sessions(
          size,
          [&](Session& session, HostMemory&) {
            ScheduleOptions options = by(schedule);
            options.announce = true;
            options.scheme = "owned";
            Training training(session, mixed_layers(), options);
            std::size_t announces = 0;
            for (const ScheduledPhase& each : training.planner().schedule().order) {
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

TEST(ScheduledTraining, an_error_names_both_layers_if_workers_have_other_orders) {
  const std::vector<std::exception_ptr> errors = run_sessions(
      3,
      [](Session& session, HostMemory&) {
        std::vector<Layer> layers = mixed_layers();
        if (session.rank() == Rank{2}) std::swap(layers[1], layers[2]);
        const SchedulePlanner planner(session, model_of(layers), {});
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

TEST(ScheduledTraining, no_layers_and_unknown_names_are_rejected) {
  const auto refused = [](const ScheduleOptions& options, const std::vector<Layer>& layers) {
    const std::vector<std::exception_ptr> errors = run_sessions(
        2,
        [&](Session& session, HostMemory&) {
          const SchedulePlanner planner(session, model_of(layers), options);
        },
        session_options());
    for (const std::exception_ptr& error : errors) {
      EXPECT_THROW(std::rethrow_exception(error), InputError);
    }
    return text_of(errors.front());
  };
  EXPECT_NE(refused({}, {}).find("no layers"), std::string::npos);
  EXPECT_NE(refused(by("soon"), mixed_layers()).find("mg_wfbp_exact"), std::string::npos);
  ScheduleOptions unknown;
  unknown.scheme = "fast";
  EXPECT_NE(refused(unknown, mixed_layers()).find("balanced"), std::string::npos);
}

/// Returns a model with equal layers.
Model even_model(int layers, double bytes) {
  Model model{"even", {}};
  for (int i = 0; i < layers; ++i) model.layers.push_back({std::to_string(i), 0, 0, bytes});
  return model;
}

TEST(SchedulePlanner, uses_medians_and_keeps_a_schedule_that_is_as_good) {
  constexpr int kLayers = 10;
  expect_no_errors(run_sessions(
      2,
      [](Session& session, HostMemory&) {
        ScheduleOptions options;
        options.schedule = "mg_wfbp_exact";
        // At 1 Gbit/s, a layer takes 0.8 ms to send and 0.2 ms to start.
        SchedulePlanner planner(session, even_model(kLayers, 1e5), options);
        EXPECT_EQ(planner.schedule().buckets.size(), 1U);  // 1 MB is less than a full bucket
        const std::vector<double> forward(kLayers, 1e-3);
        const std::vector<double> slow(kLayers, 5e-3);
        const std::vector<double> fast(kLayers, 1e-6);
        int steps = 0;
        const auto train = [&](const std::vector<double>& backward) {
          bool is_due = false;
          while (!is_due) {
            // One step in five is an outlier.
            is_due = planner.add_step(
                forward, ++steps % 5 == 0 ? std::vector<double>(kLayers, 9.0) : backward);
            ASSERT_LT(steps, 1000);
          }
        };
        train(slow);
        EXPECT_TRUE(planner.review());
        // Each layer is sent while the next one is computed, so only the last one is exposed.
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

TEST(SchedulePlanner, observed_rows_change_the_expected_cost) {
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

TEST(SchedulePlanner, a_scheme_without_a_given_cost_is_planned_for_nevertheless) {
  expect_no_errors(run_sessions(
      2,
      [](Session& session, HostMemory&) {
        Model model{"sparse", {}};
        model.layers.push_back({"table", 1e-3, 2e-3, 0, SparseGradient{1'000'000, 64, 1000}});
        ScheduleOptions options;
        options.scheme = "sparse_ps";
        const SchedulePlanner planner(session, model, options);
        EXPECT_GT(planner.expected()->communication_s, 0);
      },
      session_options()));
}

}  // namespace
}  // namespace sparsesync::testing
