// The virtual clock of a schedule, compared with recurrences and closed forms of the papers.
#include "engine/planner/schedule/schedule_simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using testing::seed;

struct Model {
  std::vector<ScheduledLayer> layers;
  double start = 0;
  double per_byte = 0;

  /// Returns the costs. Each phase takes half the time of an all-reduce.
  BucketCosts costs() const {
    return [this](LayerRange range) {
      double bytes = 0;
      for (int layer = range.first; layer <= range.last; ++layer) {
        bytes += layers[static_cast<std::size_t>(layer)].bytes;
      }
      const double half = (start + per_byte * bytes) / 2;
      return BucketSeconds{0, half, half};
    };
  }
  double all_reduce(double bytes) const { return start + per_byte * bytes; }
  double seconds(const char* policy, std::optional<double> full_bytes = std::nullopt) const {
    const BucketCosts of = costs();
    return step_seconds(layers, of, schedule_policy_named(policy).plan({layers, of, full_bytes}));
  }
};

Model some_model(Random& random) {
  Model model;
  const auto count = 1 + random.below(30);
  const double size = std::pow(10, 2 * random.uniform() - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    model.layers.push_back({random.uniform(), 2 * random.uniform(), size * random.uniform()});
  }
  model.start = random.uniform();
  model.per_byte = random.uniform();
  return model;
}

TEST(StepClock, WfbpFollowsTheRecurrenceOfItsPaper) {
  // The recurrence of MG-WFBP (arXiv 1912.09268).
  Random random(seed());
  for (int round = 0; round < 200; ++round) {
    const Model model = some_model(random);
    double forward = 0;
    for (const ScheduledLayer& layer : model.layers) forward += layer.forward_s;
    double ready = forward;  // the end of a layer's backward
    double sent = forward;
    for (std::size_t layer = model.layers.size(); layer-- > 0;) {
      ready += model.layers[layer].backward_s;
      sent = std::max(sent, ready) + model.all_reduce(model.layers[layer].bytes);
    }
    EXPECT_NEAR(model.seconds("wfbp"), sent, 1e-9 * sent) << "round " << round;
  }
}

TEST(StepClock, WithoutOverlapIsTheSumOfComputationAndCommunication) {
  Random random(seed());
  for (int round = 0; round < 100; ++round) {
    const Model model = some_model(random);
    double each = compute_seconds(model.layers);
    double bytes = 0;
    for (const ScheduledLayer& layer : model.layers) {
      each += model.all_reduce(layer.bytes);
      bytes += layer.bytes;
    }
    EXPECT_NEAR(model.seconds("sequential"), each, 1e-9 * each);
    const double together = compute_seconds(model.layers) + model.all_reduce(bytes);
    EXPECT_NEAR(model.seconds("merge_all"), together, 1e-9 * together);
  }
}

TEST(StepClock, DearTakesTheMaximumOfEachPassAndItsCommunication) {
  // Many equal layers without start-up time. Half of the communication overlaps with the backward
  // pass and half with the forward pass. All of it is hidden while the pass lasts, except for the
  // first and the last layer.
  for (const double ratio : {0.3, 0.8, 1.0, 1.5, 3.0}) {
    constexpr int kLayers = 600;
    Model model;
    model.layers.assign(kLayers, {1.0 / 3 / kLayers, 2.0 / 3 / kLayers, 1});
    model.per_byte = ratio / kLayers;
    const double half = ratio / 2;
    const double wfbp = 1.0 / 3 + std::max(2.0 / 3, ratio);
    const double dear = std::max(2.0 / 3, half) + std::max(1.0 / 3, half);
    EXPECT_NEAR(model.seconds("wfbp"), wfbp, 0.01);
    EXPECT_NEAR(model.seconds("dear", 1.0), dear, 0.01);
    EXPECT_NEAR(model.seconds("dear"), dear, 0.01);
    if (ratio == 1) {
      EXPECT_NEAR(wfbp / dear, 8.0 / 7, 0.01);  // 4/3 over 7/6: 1.143
    }
  }
}

TEST(StepClock, StepsWaitForTheSlowestWorker) {
  Model model;
  model.layers.assign(4, {1, 2, 1});
  model.per_byte = 0.5;
  const BucketCosts costs = model.costs();
  const Schedule schedule = schedule_policy_named("sequential").plan({model.layers, costs});
  StepClock clock(model.layers, costs, schedule, 3);
  for (int step = 0; step < 3; ++step) clock.step(std::array{1.0, 2.0, 0.5});
  // The slowest worker computes for 24 s per step, and 2 s of communication follow. The others
  // finish earlier.
  EXPECT_NEAR(clock.ends()[1], 3 * 24 + 2 * 2, 1e-9);
  EXPECT_NEAR(clock.ends()[0], 2 * 26 + 12, 1e-9);
  EXPECT_NEAR(clock.communication_seconds(), 2, 1e-9);
  EXPECT_THROW(clock.step(std::array{1.0, 1.0}), ContractError);
}

}  // namespace
}  // namespace sparsesync
