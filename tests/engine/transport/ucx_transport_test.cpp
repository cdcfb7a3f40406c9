// ctest: NEEDS UCX
// Transport `ucx`: the conformance suite over TCP and over shared memory, with default chunks and
// with tiny ones; the suite of windows.
#include "tests/support/transport_suite.h"
#include "tests/support/ucx_workers.h"
#include "tests/support/window_suite.h"

namespace sparsesync::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(ucx, TransportSuite,
                         ::testing::Values(ucx_workers("tcp", {.transports = "tcp,self"}),
                                           ucx_workers("sysv", {.transports = "sysv,self"}),
                                           ucx_workers("tiny_chunks", {.transports = "tcp,self",
                                                                       .chunks = {256, 1}})),
                         [](const auto& each) { return each.param.name; });

INSTANTIATE_TEST_SUITE_P(
    ucx, WindowSuite,
    ::testing::Values(ucx_workers("tcp", {.transports = "tcp,self", .chunks = kWindowedChunks}),
                      ucx_workers("sysv", {.transports = "sysv,self", .chunks = kWindowedChunks})),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sparsesync::testing
