// ctest: COST 290 WORKERS 7 SLOW ALL
// The conformance suite of schemes over MPI, under mpirun.
#include "tests/support/mpi_workers.h"
#include "tests/support/scheme_suite.h"

namespace sparsesync::testing {
namespace {

const std::array<std::vector<int>, 3> kSizes =
    kSanitized ? std::array<std::vector<int>, 3>{{{4, 7}, {3}, {2}}}
               : std::array<std::vector<int>, 3>{{{1, 2, 3, 4, 7}, {3}, {2}}};

INSTANTIATE_TEST_SUITE_P(mpi, SchemeSuite,
                         ::testing::ValuesIn(all_schemes_over(mpi_workers("mpi"), 7, kSizes)),
                         [](const auto& each) { return each.param.variant.label; });

}  // namespace
}  // namespace sparsesync::testing
