// The probe: which pairs it takes, what it times, and that nothing is faster than its link. How
// near the link it comes depends on the machine and is not tested.
#include "engine/probe.h"
#include "engine/host_probe.h"

#include <algorithm>

#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

std::vector<int> numbers(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

TEST(ProbePairs, one_of_the_own_node_and_one_of_three_others) {
  const auto pairs = [](int size, int per_node, bool each_a_node) {
    LocalNetwork network(size, {}, per_node);
    ProbeOptions options;
    options.each_a_node = each_a_node;
    return probe_pairs(*network.join(Rank{0}), options);
  };
  EXPECT_EQ(numbers(pairs(5, 2, false).intra), (std::vector<int>{1}));
  EXPECT_EQ(numbers(pairs(5, 2, false).inter), (std::vector<int>{2, 4}));
  EXPECT_EQ(numbers(pairs(4, 4, false).intra), (std::vector<int>{1}));
  EXPECT_TRUE(pairs(4, 4, false).inter.empty());
  EXPECT_TRUE(pairs(8, 1, false).intra.empty());
  EXPECT_EQ(numbers(pairs(8, 1, false).inter), (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(pairs(8, 8, true).intra.empty());
  EXPECT_EQ(numbers(pairs(8, 8, true).inter), (std::vector<int>{1, 2, 3}));
}

/// What each worker brings home.
std::vector<ProbedLinks> probed(LocalNetwork& network, int size, const ProbeOptions& options) {
  std::vector<ProbedLinks> found(static_cast<std::size_t>(size));
  expect_no_errors(run_transports(network, size, [&](std::unique_ptr<Transport>& transport) {
    HostMemory memory;
    found.at(static_cast<std::size_t>(transport->rank().value)) =
        probe_links(*transport, Context(memory), options);
  }));
  return found;
}

TEST(ProbeLinks, worker_0_times_every_size) {
  LocalNetwork network(4, {}, 2);
  int sizes_done = 0;
  ProbeOptions options;
  options.repeat = 2;
  options.longest_s = 1e9;
  options.size_done = [&] { ++sizes_done; };
  const std::vector<ProbedLinks> found = probed(network, 4, options);
  EXPECT_EQ(sizes_done, 2 * 8);
  for (const auto& samples : {found[0].inter, found[0].intra}) {
    for (const std::int64_t size : kProbeSizes) {
      const auto bytes = static_cast<double>(size + kHeaderBytes);
      const auto timings = std::count_if(samples.begin(), samples.end(),
                                         [&](const auto& each) { return each.bytes == bytes; });
      EXPECT_EQ(timings, 2) << size;
    }
    for (const TimedTransfer& sample : samples) EXPECT_GT(sample.seconds, 0);
  }
  for (std::size_t other = 1; other < 4; ++other) {
    EXPECT_TRUE(found[other].inter.empty());
    EXPECT_TRUE(found[other].intra.empty());
  }
}

TEST(ProbeLinks, nothing_is_faster_than_its_link_and_large_messages_are_left_out) {
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

TEST(ProbeLinks, a_worker_that_left_is_an_error) {
  LocalNetwork network(3);
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank() == Rank{1}) return;
    HostMemory memory;
    ProbeOptions options;
    options.each_a_node = true;
    probe_links(*transport, Context(memory), options);
  });
  EXPECT_TRUE(is<PeerLostError>(errors[0])) << text_of(errors[0]);
  EXPECT_TRUE(errors[2]) << "worker 2 learns of it too";
}

TEST(ProbeHost, work_takes_time) {
  const HostCosts costs = probe_host(1);
  for (const HostCost& cost : kHostCosts) {
    EXPECT_GE(costs.*cost.seconds, 0) << cost.name;
    EXPECT_LT(costs.*cost.seconds, 1) << cost.name;
  }
  EXPECT_GT(costs.seconds({1000, 64'000}), 0) << "to encode";
  EXPECT_GT(costs.seconds({0, 0, 1000, 64'000}), 0) << "to aggregate";
}

TEST(Calibrate, knows_links_and_hosts_in_the_end) {
  LocalWorkers workers(3, {50e6, 1e-3});
  ProbeOptions options;
  options.repeat = 3;
  options.each_a_node = true;
  std::int64_t last = 0;
  std::int64_t all = 0;
  const NetworkFile network =
      calibrate(workers, options, [&](std::int64_t done, std::int64_t total) {
        EXPECT_GE(done, last);
        last = done;
        all = total;
      });
  EXPECT_EQ(all, 2 * 8);
  EXPECT_FALSE(network.intra);
  ASSERT_TRUE(network.inter);
  EXPECT_GT(network.inter->rate_bps, 0);
  EXPECT_GT(network.inter->latency_s, 0);
  EXPECT_GT(network.host.seconds({1000, 64'000}), 0);
  LocalWorkers alone(1, {});
  EXPECT_THROW(calibrate(alone, options, [](std::int64_t, std::int64_t) {}), InputError);
}

}  // namespace
}  // namespace sparsesync::testing
