// ctest: NEEDS UCX WORKERS 7
// Transport `ucx` between processes: the conformance suite, with MPI's all-reduce.
#include "sparsesync/transports/ucx.h"
#include "tests/support/mpi_workers.h"
#include "tests/support/transport_suite.h"

namespace sparsesync::testing {
namespace {

WorkersUnderTest over_mpi(const std::string& name, UcxOptions options) {
  WorkersUnderTest workers = mpi_workers(name);
  workers.run = [run = workers.run, options](int size, const WorkersUnderTest::Body& body) {
    return run(size, [&](std::unique_ptr<Transport>& transport) {
      transport = ucx_over(std::move(transport), options);
      body(transport);
    });
  };
  return workers;
}

INSTANTIATE_TEST_SUITE_P(ucx_over_mpi, TransportSuite,
                         ::testing::Values(over_mpi("shared_memory", {.transports = "sysv,self"}),
                                           over_mpi("tcp", {.transports = "tcp,self"})),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace sparsesync::testing
