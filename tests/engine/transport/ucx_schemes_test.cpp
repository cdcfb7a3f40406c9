// ctest: NEEDS UCX COST 200 SLOW ALL
// The conformance suite of schemes over UCX, with shared memory and TCP.
#include "tests/support/scheme_suite.h"
#include "tests/support/ucx_workers.h"

namespace sparsesync::testing {
namespace {

const std::array<std::vector<int>, 3> kSizes =
    kSanitized ? std::array<std::vector<int>, 3>{{{4}, {3}, {2}}}
               : std::array<std::vector<int>, 3>{{{1, 2, 3, 4, 7}, {3}, {2}}};

INSTANTIATE_TEST_SUITE_P(ucx, SchemeSuite,
                         ::testing::ValuesIn(all_schemes_over(
                             ucx_workers("ucx", {.transports = "tcp,self"}), 7, kSizes)),
                         [](const auto& each) { return each.param.variant.label; });

}  // namespace
}  // namespace sparsesync::testing
