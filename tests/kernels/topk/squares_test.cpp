// ctest: DEVICES
#include "kernels/topk/norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/tree_reduction.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using Squares = OperationTest;

template <typename T>
void expect_sum(const Context& context, Random& random, Index count) {
  std::vector<T> values;
  std::vector<double> squares;
  long double plain = 0;
  for (Index i = 0; i < count; ++i) {
    values.push_back(value_of<T>((random.uniform() - 0.5) * (random.below(4) == 0 ? 64.0 : 1.0)));
    const auto number = static_cast<double>(ValueTraits<T>::widen(values.back()));
    squares.push_back(number * number);
    plain += static_cast<long double>(number) * number;
  }
  std::vector<double> sum{0};
  add_squares(context, matrix_of(std::as_const(values), 1), sum.data());
  synchronize(context);
  EXPECT_EQ(bits_of(sum[0]), bits_of(reduce_in_order(squares))) << count << " elements";
  EXPECT_NEAR(sum[0], static_cast<double>(plain), 1e-12 * static_cast<double>(plain));
  const double once = sum[0];
  add_squares(context, Unaligned<T>(values, 1).matrix(), sum.data());
  synchronize(context);
  EXPECT_EQ(bits_of(sum[0]), bits_of(once + once)) << count << " elements";
}

TEST_F(Squares, AreSummedInTheReductionOrderForAnyCount) {
  Random random(testing::seed());
  for_each_float_dtype([&]<typename T>(T) {
    for (const Index count :
         {0, 1, 2, 31, 32, 33, 255, 256, 257, 4095, 4096, 4097, 3 * 4096 + 700}) {
      expect_sum<T>(context_, random, count);
    }
  });
}

TEST_F(Squares, OfMoreSegmentsThanPartialSums) {
  Random random(testing::seed());
  expect_sum<float>(context_, random, 40 * 4096 + 4097);
}

TEST_F(Squares, OfNonFiniteValuesAreNotFinite) {
  std::vector<float> values(300, 1.0F);
  values[270] = HUGE_VALF;
  std::vector<double> sums(2);
  add_squares(context_, matrix_of(std::as_const(values), 3), sums.data());
  values[270] = std::nanf("");
  add_squares(context_, matrix_of(std::as_const(values), 3), sums.data() + 1);
  synchronize(context_);
  EXPECT_EQ(sums[0], HUGE_VAL);
  EXPECT_TRUE(std::isnan(sums[1]));
}

}  // namespace
}  // namespace sparsesync
