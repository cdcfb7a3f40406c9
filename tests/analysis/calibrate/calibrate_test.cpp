// `calibrate`: measures links and processors, and reports its progress.
#include "analysis/calibrate/calibrate.h"

#include <gtest/gtest.h>

namespace sparsesync::testing {
namespace {

TEST(Calibrate, measures_links_and_hosts) {
  LocalWorkers workers(3, {500e6, 1e-3});
  ProbeOptions options;
  options.repeat = 3;
  options.longest_s = 1;  // high enough that large messages are sent even on a busy machine
  options.each_a_node = true;
  options.under_load = true;
  std::int64_t last = 0;
  std::int64_t all = 0;
  const NetworkFile network =
      calibrate(workers, options, [&](std::int64_t done, std::int64_t total) {
        EXPECT_GE(done, last);
        last = done;
        all = total;
      });
  EXPECT_EQ(all, 3 * 4) << "two pairs and the load, in a warm-up and three passes";
  EXPECT_FALSE(network.intra);
  EXPECT_FALSE(network.intra_loaded);
  ASSERT_TRUE(network.inter);
  ASSERT_TRUE(network.inter_loaded);
  EXPECT_LE(network.inter_loaded->rate_bps, network.inter_loaded->rate_ci.high);
  EXPECT_GT(network.inter->rate_bps, 0);
  EXPECT_GT(network.inter->latency_s, 0);
  for (const HostCost& cost : kHostCosts) EXPECT_GE(network.host.*cost.seconds, 0) << cost.name;
  EXPECT_GT(network.host.seconds({.encoded_rows = 1000,
                                  .encoded_bytes = 64'000,
                                  .aggregated_rows = 1000,
                                  .aggregated_bytes = 64'000}),
            0);
  LocalWorkers alone(1, {});
  EXPECT_THROW(calibrate(alone, options, [](std::int64_t, std::int64_t) {}), InputError);
}

}  // namespace
}  // namespace sparsesync::testing
