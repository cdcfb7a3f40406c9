// Transport `nccl` among threads of this process: the conformance suites of transports and of
// schemes, and what NCCL adds. On several GPUs, or on one where NCCL lets ranks share it
// (NCCL_MULTI_RANK_GPU_ENABLE=1, from 2.30 on), or on the emulated device.
#include "engine/transport/nccl.h"

#include <gmock/gmock.h>

#include "tests/support/scheme_suite.h"
#include "tests/support/transport_suite.h"

namespace sparsesync::testing {
namespace {

/// Leaves at the end, whatever is thrown: before its memory goes.
struct Leaving {
  std::unique_ptr<Transport>& transport;
  ~Leaving() { transport.reset(); }
};

/// Threads on GPUs, brought together by a network of this process.
WorkersUnderTest nccl_workers() {
  WorkersUnderTest workers = local_workers("nccl", {});
  workers.has_all_reduce = true;
  workers.run = [run = workers.run](int size, const WorkersUnderTest::Body& body) {
    return run(size, [&](std::unique_ptr<Transport>& transport) {
      HostMemory memory(std::nullopt, device_memory());
      HostMemory pinned(std::nullopt, device_memory());
      const Leaving leaving{transport};
      transport = nccl_over(std::move(transport), {0, &memory, &pinned, kDeadline});
      body(transport);
    });
  };
  return workers;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SchemeSuite);

// Of GPUs alone: on the host there is nothing to connect.
INSTANTIATE_TEST_SUITE_P(nccl, TransportSuite,
                         ::testing::ValuesIn(on_cuda() ? std::vector{nccl_workers()}
                                                       : std::vector<WorkersUnderTest>{}),
                         [](const auto& each) { return each.param.name; });

const std::array<std::vector<int>, 3> kSizes =
    kSanitized ? std::array<std::vector<int>, 3>{{{1, 4}, {3}, {2}}}
               : std::array<std::vector<int>, 3>{{{1, 2, 3, 5, 8}, {4}, {3}}};

INSTANTIATE_TEST_SUITE_P(nccl, SchemeSuite,
                         ::testing::ValuesIn(on_cuda() ? all_schemes_over(nccl_workers(), 8, kSizes)
                                                       : std::vector<SchemeUnderTest>{}),
                         [](const auto& each) { return each.param.variant.label; });

TEST(Nccl, says_its_version_or_why_there_is_none) {
  EXPECT_THAT(nccl_text(), ::testing::MatchesRegex("[0-9]+[.][0-9]+[.][0-9]+|[(].+[)]"));
}

}  // namespace
}  // namespace sparsesync::testing
