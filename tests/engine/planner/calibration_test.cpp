// The link probe: the pairs that it selects, its measurements, and that no measurement is faster
// than the link. How close it gets to the link's speed depends on the machine and is not tested.
#include "engine/planner/calibration/measure.h"

#include <algorithm>

#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

std::vector<int> numbers(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

ProbedWorkers probed_in(int size, int per_node, bool each_a_node) {
  LocalNetwork network(size, {}, per_node);
  ProbeOptions options;
  options.each_a_node = each_a_node;
  options.under_load = true;
  return probed_workers(*network.join(Rank{0}), options);
}

TEST(ProbedWorkers, one_on_the_same_node_and_one_on_each_of_three_others) {
  EXPECT_EQ(numbers(probed_in(5, 2, false).intra), (std::vector<int>{1}));
  EXPECT_EQ(numbers(probed_in(5, 2, false).inter), (std::vector<int>{2, 4}));
  EXPECT_EQ(numbers(probed_in(4, 4, false).intra), (std::vector<int>{1}));
  EXPECT_TRUE(probed_in(4, 4, false).inter.empty());
  EXPECT_TRUE(probed_in(8, 1, false).intra.empty());
  EXPECT_EQ(numbers(probed_in(8, 1, false).inter), (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(probed_in(8, 8, true).intra.empty());
  EXPECT_EQ(numbers(probed_in(8, 8, true).inter), (std::vector<int>{1, 2, 3}));
}

TEST(ProbedWorkers, load_needs_three_workers) {
  const auto loads = [](int size, int per_node, bool each_a_node) {
    const ProbedWorkers probed = probed_in(size, per_node, each_a_node);
    return std::pair(probed.all_between_nodes, probed.all_inside_nodes);
  };
  EXPECT_EQ(loads(2, 1, false), std::pair(false, false));
  EXPECT_EQ(loads(2, 2, false), std::pair(false, false));
  EXPECT_EQ(loads(3, 1, false), std::pair(true, false));
  EXPECT_EQ(loads(3, 3, false), std::pair(false, true));
  EXPECT_EQ(loads(3, 3, true), std::pair(true, false));
  EXPECT_EQ(loads(4, 2, false), std::pair(true, false));
  EXPECT_EQ(loads(6, 3, false), std::pair(true, true));
  EXPECT_EQ(probed_in(6, 3, false).probes(), 4U);
  ProbeOptions idle;
  LocalNetwork network(6, {}, 3);
  EXPECT_EQ(probed_workers(*network.join(Rank{0}), idle).probes(), 2U);
}

/// Returns the measurements of each worker.
std::vector<ProbedLinks> probed(LocalNetwork& network, int size, const ProbeOptions& options) {
  std::vector<ProbedLinks> found(static_cast<std::size_t>(size));
  expect_no_errors(run_transports(network, size, [&](std::unique_ptr<Transport>& transport) {
    HostMemory memory;
    found.at(static_cast<std::size_t>(transport->rank().value)) =
        probe_links(*transport, Context(memory), options);
  }));
  return found;
}

TEST(ProbeLinks, worker_0_times_every_size_in_every_pass) {
  LocalNetwork network(4, {}, 2);
  int probes_done = 0;
  ProbeOptions options;
  options.repeat = 2;
  options.longest_s = 1e9;
  options.probe_done = [&] { ++probes_done; };
  const std::vector<ProbedLinks> found = probed(network, 4, options);
  EXPECT_EQ(probes_done, 2 * 3) << "the warm-up pass is reported, too";
  for (const auto& samples : {found[0].inter, found[0].intra}) {
    for (const std::int64_t size : kProbeSizes) {
      const auto bytes = static_cast<double>(size + kHeaderBytes);
      for (const int pass : {1, 2}) {
        const auto timings = std::count_if(samples.begin(), samples.end(), [&](const auto& each) {
          return each.bytes == bytes && each.pass == pass;
        });
        EXPECT_EQ(timings, 1) << size;
      }
    }
    for (const TimedTransfer& sample : samples) EXPECT_GT(sample.seconds, 0);
  }
  for (std::size_t other = 1; other < 4; ++other) {
    EXPECT_TRUE(found[other].inter.empty());
    EXPECT_TRUE(found[other].intra.empty());
  }
}

TEST(ProbeLinks, no_sample_is_faster_than_its_link_and_large_messages_are_left_out) {
  const LocalLink link{10e6, 2e-3};
  LocalNetwork network(2, link);
  ProbeOptions options;
  options.repeat = 2;
  options.longest_s = 0.02;
  options.each_a_node = true;
  const std::vector<ProbedLinks> found = probed(network, 2, options);
  EXPECT_TRUE(found[0].intra.empty());
  ASSERT_GE(found[0].inter.size(), 3U * 2);
  for (const TimedTransfer& sample : found[0].inter) {
    EXPECT_GE(sample.seconds, link.latency_s + sample.bytes * 8 / *link.rate_bps);
    EXPECT_LE(sample.bytes, 17'000);  // 64 KiB would take 52 ms
  }
}

TEST(ProbeLinks, under_load_a_worker_receives_from_all) {
  const LocalLink link{100e6, 1e-3};
  LocalNetwork network(6, link, 3);
  ProbeOptions options;
  options.repeat = 2;
  options.longest_s = 0.02;
  options.under_load = true;
  const std::vector<ProbedLinks> found = probed(network, 6, options);
  const auto expect_received = [&](const std::vector<TimedTransfer>& samples, int from) {
    ASSERT_GE(samples.size(), 3U * 2);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      // At least three sizes, with the same number of samples in both passes.
      const std::size_t size = i % (samples.size() / 2);
      const std::int64_t of_each = kProbeSizes[size] / from + kHeaderBytes;
      const auto bytes = static_cast<double>(from * of_each);
      EXPECT_EQ(samples[i].bytes, bytes);
      EXPECT_GE(samples[i].seconds, link.latency_s + bytes * 8 / *link.rate_bps);
    }
  };
  expect_received(found[0].inter_loaded, 5);
  expect_received(found[0].intra_loaded, 2);
  for (std::size_t other = 1; other < 6; ++other) {
    EXPECT_TRUE(found[other].inter_loaded.empty());
    EXPECT_TRUE(found[other].intra_loaded.empty());
  }
}

TEST(ProbeLinks, a_worker_that_left_causes_an_error) {
  LocalNetwork network(3);
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == Rank{1}) return;
    HostMemory memory;
    ProbeOptions options;
    options.each_a_node = true;
    probe_links(*transport, Context(memory), options);
  });
  EXPECT_TRUE(is<PeerLostError>(errors[0])) << text_of(errors[0]);
  EXPECT_TRUE(errors[2]) << "worker 2 did not fail";
}

TEST(ProbeHost, work_takes_time) {
  const HostCosts costs = probe_host(1);
  for (const HostCost& cost : kHostCosts) {
    EXPECT_GE(costs.*cost.seconds, 0) << cost.name;
    EXPECT_LT(costs.*cost.seconds, 1) << cost.name;
  }
  EXPECT_GT(costs.seconds({.encoded_rows = 1000,
                           .encoded_bytes = 64'000,
                           .aggregated_rows = 1000,
                           .aggregated_bytes = 64'000}),
            0)
      << "encoding and aggregation";
}

}  // namespace
}  // namespace sparsesync::testing
