// Error messages of broken contracts and of exceeded budgets.
#include "kernels/base/error.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>

namespace sparsesync {
namespace {

// There are two families of errors. A caller that catches Error does not catch a contract error.
static_assert(std::is_base_of_v<Error, InputError>);
static_assert(std::is_base_of_v<Error, BudgetError>);
static_assert(std::is_base_of_v<Error, CorruptDataError>);
static_assert(!std::is_base_of_v<Error, ContractError>);

template <typename Body>
std::string contract_text(Body&& body) {
  try {
    body();
  } catch (const ContractError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Expect, PrintsTheLocationTheExpressionAndBothOperands) {
  const std::int64_t rows = -3;
  const int line = __LINE__ + 1;
  const std::string text = contract_text([&] { SPARSESYNC_EXPECT(rows, >=, std::int64_t{4}); });
  std::ostringstream expected;
  expected << __FILE__ << ':' << line << ": expected rows >= std::int64_t{4}, got -3 and 4";
  EXPECT_EQ(text, expected.str());
}

TEST(Expect, PrintsEveryKindOfOperand) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  };
  has(contract_text([] { SPARSESYNC_EXPECT(1, ==, -2); }), "got 1 and -2");
  has(contract_text([] { SPARSESYNC_EXPECT(1U, ==, 2U); }), "got 1 and 2");
  has(contract_text([] {
        SPARSESYNC_EXPECT(std::numeric_limits<std::uint64_t>::max(), <, std::uint64_t{0});
      }),
      "got 18446744073709551615 and 0");
  has(contract_text(
          [] { SPARSESYNC_EXPECT(std::numeric_limits<std::int64_t>::min(), >, std::int64_t{0}); }),
      "got -9223372036854775808 and 0");
  has(contract_text([] { SPARSESYNC_EXPECT(true, ==, false); }), "got true and false");
  has(contract_text([] { SPARSESYNC_EXPECT(std::string("a b"), ==, std::string()); }),
      "got 'a b' and ''");
  has(contract_text([] { SPARSESYNC_EXPECT(std::string("f32"), ==, "bf16"); }),
      "got 'f32' and 'bf16'");
}

TEST(Expect, EvaluatesOperandsOnceAndIsSilentIfTheyMatch) {
  int left = 0;
  int right = 0;
  EXPECT_NO_THROW(SPARSESYNC_EXPECT(++left, ==, ++right));
  EXPECT_EQ(left, 1);
  EXPECT_EQ(right, 1);
  EXPECT_THROW(SPARSESYNC_EXPECT(++left, ==, right), ContractError);
  EXPECT_EQ(left, 2);
}

TEST(BudgetErrors, ReportTheNeededAndTheAvailableBytes) {
  const BudgetError error(1000, 999, "workspace of a worker");
  EXPECT_EQ(error.needed(), 1000);
  EXPECT_EQ(error.budget(), 999);
  EXPECT_STREQ(error.what(),
               "workspace of a worker: 1000 bytes would be in use, the budget is 999: raise it "
               "(--memory, in Python memory_bytes=, in C++ HostMemory)");
}

TEST(BudgetErrors, DoNotReportAByteCountThatOverflowed) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const BudgetError error(most, 999, "workspace");
  EXPECT_EQ(error.needed(), most);
  EXPECT_STREQ(error.what(), "workspace: more bytes than can be counted, with a budget of 999");
}

}  // namespace
}  // namespace sparsesync
