// ctest: WORKERS 7
// Transport `mpi`: the conformance suite under mpirun, with default packets and with tiny
// ones; the suite of windows.
#include "tests/support/mpi_workers.h"
#include "tests/support/transport_suite.h"
#include "tests/support/window_suite.h"

namespace sparsesync::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(mpi, TransportSuite,
                         ::testing::Values(mpi_workers("default"),
                                           mpi_workers("tiny_packets", {256, 1})),
                         [](const auto& each) { return each.param.name; });

INSTANTIATE_TEST_SUITE_P(mpi, WindowSuite, ::testing::Values(mpi_workers("mpi", kWindowedChunks)),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sparsesync::testing
