// ctest: NEEDS UCX COST 200 SLOW ALL
// The conformance suite of schemes over UCX, by TCP.
#include "tests/support/scheme_suite.h"
#include "tests/support/ucx_workers.h"

namespace sparsesync::testing {
namespace {

/// Returns all schemes. Sanitizers, which take ten times as long, get every fourth: the suite of
/// the transport finds its faults, and that of the schemes theirs.
std::vector<SchemeUnderTest> schemes() {
  std::vector<SchemeUnderTest> all =
      all_schemes_over(ucx_workers("ucx", {.transports = "tcp,self"}), 7,
                       std::array<std::vector<int>, 3>{{{1, 2, 3, 4, 7}, {3}, {2}}});
  if (!kSanitized) return all;
  std::vector<SchemeUnderTest> some;
  for (std::size_t i = 0; i < all.size(); i += 4) some.push_back(std::move(all[i]));
  return some;
}

INSTANTIATE_TEST_SUITE_P(ucx, SchemeSuite, ::testing::ValuesIn(schemes()),
                         [](const auto& each) { return each.param.variant.label; });

}  // namespace
}  // namespace sparsesync::testing
