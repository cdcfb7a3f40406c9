// SparseAllReduce: the exact sum on all workers in every step, and rejected input.
#include "sparsesync/all_reduce.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

template <typename T>
class AllReduceOf : public ::testing::Test {};
using Elements = ::testing::Types<float, double, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(AllReduceOf, Elements);

TYPED_TEST(AllReduceOf, sums_rows_step_after_step) {
  constexpr int kWorkers = 3;
  const auto work = [](std::unique_ptr<Transport>& transport) {
    const int rank = transport->rank().value;
    SparseAllReduce<TypeParam> all_reduce(std::move(transport), 1000, 2);
    for (int step = 1; step < 3; ++step) {
      // All workers have row 7, and repeat it.
      const std::vector<Index> rows{100 + rank, 7, 7};
      std::vector<TypeParam> values;
      for (const int value : {10, 20, 1, 2, 3, 4}) {
        values.push_back(static_cast<TypeParam>(value * step));
      }
      const SparseRows<TypeParam> sum = all_reduce(rows, values);
      EXPECT_EQ(std::vector<Index>(sum.indices.begin(), sum.indices.end()),
                (std::vector<Index>{7, 100, 101, 102}));
      std::vector<TypeParam> expected;
      for (const int value : {12, 18, 10, 20, 10, 20, 10, 20}) {
        expected.push_back(static_cast<TypeParam>(value * step));
      }
      EXPECT_EQ(std::vector<TypeParam>(sum.values.begin(), sum.values.end()), expected);
    }
  };
  expect_no_errors(local_workers("local", {}).run(kWorkers, work));
}

TEST(AllReduce, invalid_input_is_rejected_and_the_next_step_works) {
  expect_no_errors(local_workers("local", {}).run(1, [](std::unique_ptr<Transport>& transport) {
    SparseAllReduce<float> all_reduce(std::move(transport), 10, 2);
    const std::array<Index, 2> rows{3, 5};
    const std::array<float, 4> values{1, 2, 3, 4};
    EXPECT_THROW(all_reduce(rows, std::span(values).first(3)), InputError);
    EXPECT_THROW(all_reduce(rows, std::span(values).first(2)), InputError);
    EXPECT_THROW(all_reduce(std::array<Index, 2>{3, 10}, values), InputError);
    EXPECT_EQ(all_reduce(rows, values).values.size(), 4U);
    EXPECT_TRUE(all_reduce({}, {}).indices.empty());
  }));
}

TEST(AllReduce, workers_with_different_shapes_get_an_error) {
  const auto errors = local_workers("local", {}).run(2, [](std::unique_ptr<Transport>& transport) {
    const Index width = 1 + transport->rank().value;
    const SparseAllReduce<float> all_reduce(std::move(transport), 10, width);
  });
  for (const std::exception_ptr& error : errors) EXPECT_TRUE(is<AgreementError>(error));
}

}  // namespace
}  // namespace sparsesync::testing
