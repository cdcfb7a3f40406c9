// Trains four layers with the schedule DeAR: gradients are reduced during the backward pass and
// gathered during the next forward pass.
//   schedule
#include <sparsesync/sparsesync.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

using namespace sparsesync;

namespace {

constexpr std::size_t kLayers = 4;
constexpr Index kElements = 1000;  // per layer
constexpr double kLayerBytes = 4.0 * kElements;

void train(std::unique_ptr<Transport> transport) {
  HostMemory memory;
  Session session(std::move(transport), memory);
  const Model model{.layers = std::vector<ModelLayer>(kLayers, {.bytes = kLayerBytes})};
  // Without `full_bytes`, the planner chooses the buckets from the seconds passed to add_step().
  SchedulePlanner planner(session, model, {.schedule = "dear", .full_bytes = 2 * kLayerBytes});
  ScheduledStep step(planner.schedule(), kLayers);
  std::vector<BucketId> ids;
  std::vector<std::vector<float>> gradients;  // [bucket]
  for (const LayerRange layers : step.schedule().buckets) {
    const Index elements = layers.size() * kElements;
    ids.push_back(session.register_bucket(
        {.tensors = {{"gradients", elements, 1, DType::f32}}, .scheme = "dense_ring"}));
    gradients.emplace_back(elements);
  }
  session.set_order(step.order(ids), session.step());

  std::vector<std::optional<Session::Ticket>> gathers(ids.size());
  std::vector<float> weights(ids.size());  // [bucket]: its first weight
  const auto update = [&](std::size_t bucket) {
    if (!gathers[bucket]) return;  // already updated
    session.wait(*std::exchange(gathers[bucket], std::nullopt));
    const std::byte* const sums = session.result(ids[bucket], 0).values.data;
    weights[bucket] -= 0.5F * *reinterpret_cast<const float*>(sums);
  };
  for (int i = 0; i < 3; ++i) {
    step.begin_forward();
    for (std::size_t layer = 0; layer < kLayers; ++layer) update(step.bucket_of(layer));
    for (std::size_t layer = kLayers; layer-- > 0;) {  // the backward pass
      const std::optional<std::size_t> bucket = step.ready(layer);
      if (!bucket) continue;  // waits for other layers of the bucket
      std::ranges::fill(gradients[*bucket], static_cast<float>(i + 1));
      const auto gradient = Gradient::dense(std::as_bytes(std::span(gradients[*bucket])).data());
      session.submit(ids[*bucket], Phase::reduce, std::span(&gradient, 1));
      gathers[*bucket] = session.submit(ids[*bucket], Phase::gather);
    }
    step.end_backward();
  }
  for (const std::size_t bucket : step.gathers()) update(bucket);
  for (std::size_t i = 0; i < ids.size() && session.rank() == Rank{0}; ++i) {
    const LayerRange layers = step.schedule().buckets[i];
    std::printf("layers %d to %d: weight %g\n", layers.first, layers.last, weights[i]);
  }
}

}  // namespace

int main() {
  LocalNetwork network(2);
  std::jthread other(train, network.join(Rank{1}));
  train(network.join(Rank{0}));
}
