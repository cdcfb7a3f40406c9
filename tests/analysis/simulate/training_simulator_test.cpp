// The training simulator: its costs, workers with different speeds, and the timeline that it
// writes.
#include "analysis/simulate/training_simulator.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/planner/schedule/timeline.h"
#include "kernels/base/error.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using testing::seed;

Model some_model(int layers) {
  Model model{"m", {}};
  for (int i = 0; i < layers; ++i) {
    model.layers.push_back({fmt::format("l{}", i), 0.001, 0.002, 1e6});
  }
  return model;
}

/// Returns a model whose last two layers are sparse tables.
Model with_tables() {
  Model model = some_model(6);
  for (ModelLayer& layer : std::span(model.layers).last(2)) {
    layer.sparse = SparseGradient{100'000, 32, 2000, {{2, 1.6}, {4, 2.5}}};
    layer.bytes = 0;
  }
  return model;
}

CrossingOptions over(double rate_bps, double latency_s) {
  CrossingOptions options;
  options.network = {latency_s, rate_bps};
  return options;
}

TEST(Costs, OfAnAffineAllReduceAreHalfOfItInEachPhase) {
  const Model model = some_model(4);
  CrossingOptions options;
  options.affine = {{9.754e-5, 3.057e-10}};
  const ModelCosts costs(model, 8, options);
  const BucketSeconds seconds = costs.seconds({1, 3});
  const double whole = 9.754e-5 + 3.057e-10 * 3e6;
  EXPECT_NEAR(seconds.reduce, whole / 2, 1e-15);
  EXPECT_NEAR(seconds.gather, whole / 2, 1e-15);
  EXPECT_EQ(costs.scheme({1, 3}), "all_reduce");
}

TEST(Costs, OfARingMatchThePapers) {
  // Each phase sends (n - 1) messages of m/n bytes.
  const Model model = some_model(4);
  for (const int workers : {2, 8, 1024}) {
    const ModelCosts costs(model, workers, over(10e9, 20e-6));
    const double steps = workers - 1;
    const double expected = steps * 20e-6 + steps / workers * 4e6 * 8 / 10e9;
    const BucketSeconds seconds = costs.seconds({0, 3});
    // The rest is headers and additions by the processor.
    EXPECT_NEAR(seconds.gather, expected, 0.1 * expected) << workers;
    EXPECT_GE(seconds.reduce, seconds.gather * 0.999) << workers;
  }
}

TEST(Costs, OfOneWorkerAreZero) {
  const Model model = with_tables();
  const ModelCosts costs(model, 1, over(1e9, 1e-5));
  for (const LayerRange range : {LayerRange{0, 3}, LayerRange{4, 5}}) {
    EXPECT_EQ(costs.seconds(range).values(), 0);
    EXPECT_EQ(costs.scheme(range), "");
    EXPECT_EQ(costs.messages(range), 0);
  }
  for (const SchedulePolicy& policy : schedule_policies()) {
    const SimulatedStep step = simulate(costs, 1, policy);
    EXPECT_NEAR(step.iteration_s, 0.018, 1e-12) << policy.name;
    EXPECT_NEAR(step.efficiency(), 1, 1e-9) << policy.name;
  }
}

TEST(Costs, MergedLayersCostMoreThanOneButLessThanTheirSum) {
  const Model model = with_tables();
  for (const bool announce : {false, true}) {
    CrossingOptions options = over(1e9, 50e-6);
    options.announce = announce;
    for (const int workers : {2, 3, 16, 512}) {
      const ModelCosts costs(model, workers, options);
      const auto sum = [&](LayerRange range) {
        const BucketSeconds seconds = costs.seconds(range);
        return seconds.values() + seconds.announce;
      };
      EXPECT_GE(sum({4, 5}), sum({4, 4}));
      EXPECT_LE(sum({4, 5}), (sum({4, 4}) + sum({5, 5})) * (1 + 1e-9));
      EXPECT_EQ(costs.seconds({4, 5}).announce > 0, announce);
      EXPECT_EQ(costs.layers()[4].announces, announce);
      EXPECT_NE(costs.layers()[4].kind, costs.layers()[3].kind);
    }
  }
}

/// On a ring without latency, time is proportional to bytes.
TEST(Costs, NarrowValuesAndChunksTakeLessTime) {
  const Model model = with_tables();
  const auto seconds = [&](DType wire, std::optional<CrossingChunks> chunks, LayerRange range) {
    CrossingOptions options = over(1e9, 0);
    options.wire = wire;
    options.chunks = chunks;
    return ModelCosts(model, 8, options).seconds(range).values();
  };
  const double dense = seconds(DType::f32, {}, {0, 1});
  const double sparse = seconds(DType::f32, {}, {5, 5});
  for (const DType half : {DType::f16, DType::bf16}) {
    EXPECT_NEAR(seconds(half, {}, {0, 1}), dense / 2, 1e-3 * dense);  // tolerance for headers
    EXPECT_LT(seconds(half, {}, {5, 5}), 0.6 * sparse);
  }
  const CrossingChunks tenth{0.1, 1000};
  // A norm of 8 bytes per chunk of 1,000 elements of 4 bytes.
  EXPECT_NEAR(seconds(DType::f32, tenth, {0, 1}), 0.102 * dense, 1e-3 * dense);
  EXPECT_NEAR(seconds(DType::f16, tenth, {0, 1}), 0.052 * dense, 1e-3 * dense);
  EXPECT_EQ(seconds(DType::f32, tenth, {5, 5}), sparse);
  CrossingOptions options = over(1e9, 0);
  options.wire = DType::i32;
  EXPECT_THROW(ModelCosts(model, 8, options), InputError);
}

TEST(Costs, SchemesThatDependOnPositionsOfRowsAreRejected) {
  const Model model = with_tables();
  for (const std::string scheme : {"sparse_ps", "block_ps", "dynamic_split"}) {
    CrossingOptions options = over(1e9, 1e-5);
    options.scheme = scheme;
    EXPECT_FALSE(is_cost_predictable(scheme));
    EXPECT_THROW(ModelCosts(model, 4, options), InputError) << scheme;
  }
  CrossingOptions options = over(1e9, 1e-5);
  options.scheme = "balanced_hash";
  options.announce = true;
  EXPECT_THROW(ModelCosts(model, 4, options), InputError);
  options.scheme = "none";
  EXPECT_THROW(ModelCosts(model, 4, options), InputError);
}

TEST(Simulate, StepsOfEqualWorkersAreAllEqual) {
  const Model model = with_tables();
  const ModelCosts costs(model, 16, over(10e9, 20e-6));
  const BucketCosts of_buckets = costs.costs();
  for (const SchedulePolicy& policy : schedule_policies()) {
    const SimulatedStep step = simulate(costs, 16, policy);
    EXPECT_NEAR(step.iteration_s, step_seconds(costs.layers(), of_buckets, step.schedule),
                1e-9 * step.iteration_s)
        << policy.name;
    EXPECT_NEAR(step.exposed_s, step.iteration_s - step.compute_s, 1e-12);
    EXPECT_LE(step.exposed_s, step.communication_s + 1e-12);
    EXPECT_EQ(step.timeline.size(), 3U);
  }
}

TEST(Simulate, StragglersDependOnTheSeedAndCostTime) {
  const Model model = some_model(8);
  const ModelCosts costs(model, 32, over(10e9, 20e-6));
  const SchedulePolicy& policy = schedule_policy_named("dear");
  const auto run = [&](double deviation, std::uint64_t of_seed) {
    return simulate(costs, 32, policy, std::nullopt, {deviation, of_seed, 40});
  };
  EXPECT_EQ(run(0.2, 5).iteration_s, run(0.2, 5).iteration_s);
  EXPECT_NE(run(0.2, 5).iteration_s, run(0.2, 6).iteration_s);
  EXPECT_GT(run(0.2, 5).iteration_s, 1.05 * run(0, 5).iteration_s);
  EXPECT_GT(run(0.5, 5).iteration_s, run(0.2, 5).iteration_s);
  // The paces of the workers have mean 1.
  EXPECT_NEAR(run(0.2, 5).compute_s, run(0, 5).compute_s, 0.05 * run(0, 5).compute_s);
}

TEST(Timeline, PartsAreExposedWhenNothingIsComputed) {
  Random random(seed());
  for (int round = 0; round < 40; ++round) {
    Model model = some_model(1 + static_cast<int>(random.below(9)));
    for (ModelLayer& layer : model.layers) layer.bytes *= 3 * random.uniform();
    const ModelCosts costs(model, 4, over(1e9, 1e-4));
    for (const SchedulePolicy& policy : schedule_policies()) {
      const SimulatedStep step = simulate(costs, 4, policy);
      // In the middle of three steps, the timeline covers all communication.
      double crossed = 0;
      double exposed = 0;
      for (const CrossedPart& part : crossed_parts(step.timeline)) {
        EXPECT_GT(part.span.seconds(), 0);
        if (part.step != 1) continue;
        crossed += part.span.seconds();
        if (part.is_exposed) exposed += part.span.seconds();
      }
      EXPECT_NEAR(crossed, step.communication_s, 1e-9) << policy.name << ", round " << round;
      EXPECT_NEAR(exposed, step.exposed_s, 1e-9) << policy.name << ", round " << round;
    }
  }
}

TEST(Timeline, IsAChromeTraceWithOneRowPerKind) {
  const Model model = some_model(3);
  const ModelCosts costs(model, 4, over(1e9, 1e-4));
  const SimulatedStep step = simulate(costs, 4, schedule_policy_named("wfbp"));
  const std::vector<std::string> names{"a", "b \"quoted\"", "c"};
  const std::vector<NamedTimeline> timelines{{"wfbp", step.schedule, step.timeline}};
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(names, timelines));
  int passes = 0;
  double exposed = 0;
  std::vector<std::string> rows;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") rows.push_back(event.at("args").at("name"));
      continue;
    }
    EXPECT_GE(event.at("dur").get<double>(), 0);
    if (event.at("tid") == 0) ++passes;
    if (event.at("tid") == 2) exposed += event.at("dur").get<double>() / 1e6;
  }
  EXPECT_EQ(rows, (std::vector<std::string>{"passes", "communication, hidden",
                                            "communication, exposed"}));
  EXPECT_EQ(passes, 3 * 2 * 3);  // steps, passes, layers
  double expected = 0;
  for (const CrossedPart& part : crossed_parts(step.timeline)) {
    if (part.is_exposed) expected += part.span.seconds();
  }
  EXPECT_GT(exposed, 0);
  EXPECT_NEAR(exposed, expected, 1e-9);
}

}  // namespace
}  // namespace sparsesync
