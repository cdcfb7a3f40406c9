// ctest: DEVICES
// The residual: gradients added and removed, rows extracted and given back.
#include "kernels/topk/residual.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;
using Residual = OperationTest;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename Body>
void for_each_owed_dtype(Body&& body) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    for_owed_dtype(dtype, body);
  }
}

/// Draws integers in [-8, 8]. Every type can represent them and the sums of a few.
template <typename T>
std::vector<T> whole_numbers(Random& random, Index count) {
  std::vector<T> values;
  for (Index i = 0; i < count; ++i)
    values.push_back(value_of<T>(static_cast<double>(random.below(17)) - 8));
  return values;
}

template <typename T>
std::vector<float> widened(const std::vector<T>& values) {
  std::vector<float> wide;
  for (const T value : values) wide.push_back(ValueTraits<T>::widen(value));
  return wide;
}

TEST_F(Residual, GrowsByTheGradientTimesTheFactor) {
  Random random(testing::seed());
  for_each_owed_dtype([&]<typename T>(T) {
    for (const Index count : {0, 1, 15, 1000, 70000}) {
      const std::vector<T> gradient = whole_numbers<T>(random, count);
      const std::vector<float> before = whole_numbers<float>(random, count);
      std::vector<float> residual = before;
      std::vector<Index> lost{3};
      add_gradient(context_, Unaligned<T>(gradient, 1).matrix(), 0.5F, {}, residual,
                   Count(lost.data()));
      synchronize(context_);
      std::vector<float> expected = before;
      const std::vector<float> wide = widened(gradient);
      for (std::size_t i = 0; i < wide.size(); ++i) expected[i] += wide[i] / 2;
      EXPECT_EQ(residual, expected) << count;
      EXPECT_EQ(lost[0], 3);
      remove_gradient(context_, Unaligned<T>(gradient, 1).matrix(), 0.5F, {}, residual);
      synchronize(context_);
      EXPECT_EQ(residual, before) << count;
    }
  });
}

/// Follows the paper literally, in double. All numbers are multiples of a power of two, so this is
/// exact.
struct Reference {
  std::vector<double> residual;
  std::vector<double> velocity;

  void add(const std::vector<float>& gradient, double momentum, bool nesterov) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      velocity[i] = momentum * velocity[i] + static_cast<double>(gradient[i]);
      residual[i] +=
          nesterov ? static_cast<double>(gradient[i]) + momentum * velocity[i] : velocity[i];
    }
  }
  static void expect_same(const std::vector<float>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(static_cast<double>(found[i]), expected[i]) << i;
    }
  }
};

TEST_F(Residual, GrowsByAVelocityThatDecays) {
  Random random(testing::seed());
  for_each_owed_dtype([&]<typename T>(T) {
    for (const bool nesterov : {false, true}) {
      constexpr Index kCount = 300;
      std::vector<float> residual(kCount);
      std::vector<float> velocity(kCount);
      const Velocity of_half{velocity, 0.5F, nesterov};
      Reference reference{std::vector<double>(kCount), std::vector<double>(kCount)};
      std::vector<Index> lost{0};
      for (int step = 0; step < 5; ++step) {
        const std::vector<T> gradient = whole_numbers<T>(random, kCount);
        const std::vector<float> residual_before = residual;
        const std::vector<float> velocity_before(velocity.begin(), velocity.end());
        add_gradient(context_, matrix_of(gradient, 1), 1, of_half, residual, Count(lost.data()));
        synchronize(context_);
        reference.add(widened(gradient), 0.5, nesterov);
        Reference::expect_same(residual, reference.residual);
        Reference::expect_same(velocity, reference.velocity);
        std::vector<float> undone = residual;
        std::vector<float> slower = velocity;
        remove_gradient(context_, matrix_of(gradient, 1), 1, {slower, 0.5F, nesterov}, undone);
        synchronize(context_);
        EXPECT_EQ(undone, residual_before);
        EXPECT_EQ(slower, velocity_before);
      }
      EXPECT_EQ(lost[0], 0);
    }
  });
}

TEST_F(Residual, NeverAddsNonFiniteElements) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::vector<float> gradient{1, kInfinity, -kInfinity, std::nanf(""), kLargest, 2};
  const std::vector<float> before{10, 20, 30, 40, kLargest, 60};
  std::vector<float> residual = before;
  std::vector<Index> lost{0};
  add_gradient(context_, matrix_of(gradient, 2), 1, {}, residual, Count(lost.data()));
  synchronize(context_);
  EXPECT_EQ(residual, (std::vector<float>{11, 20, 30, 40, kLargest, 62}));
  EXPECT_EQ(lost[0], 4);

  residual = before;
  std::vector<float> velocity{1, 1, 1, 1, kLargest, 1};
  add_gradient(context_, matrix_of(gradient, 2), 1, {velocity, 1, false}, residual,
               Count(lost.data()));
  synchronize(context_);
  EXPECT_EQ(residual, (std::vector<float>{12, 20, 30, 40, kLargest, 63}));
  EXPECT_EQ(velocity, (std::vector<float>{2, 1, 1, 1, kLargest, 3}));
  EXPECT_EQ(lost[0], 8);
  const std::vector<float> what_came{1, kInfinity, -kInfinity, std::nanf(""), 0, 2};
  velocity[4] = 0;
  residual[4] = 0;
  remove_gradient(context_, matrix_of(what_came, 2), 1, {velocity, 1, false}, residual);
  synchronize(context_);
  EXPECT_EQ(residual, (std::vector<float>{10, 20, 30, 40, 0, 60}));
  EXPECT_EQ(velocity, (std::vector<float>{1, 1, 1, 1, 0, 1}));
}

TEST_F(Residual, GradientsAtAnyAddress) {
  for_each_owed_dtype([&]<typename T>(T) {
    for_each_extent(sizeof(T), [&](Index count, Index offset) {
      Index not_finite = 0;
      std::vector<T> numbers;
      std::vector<float> before;
      std::vector<float> after;
      for (Index i = 0; i < count; ++i) {
        const auto number = static_cast<float>(i % 17 - 8);
        const bool is_lost = i % 13 == 5;
        not_finite += is_lost ? 1 : 0;
        numbers.push_back(value_of<T>(is_lost ? std::numeric_limits<double>::infinity() : number));
        before.push_back(static_cast<float>(i % 5));
        after.push_back(before.back() + (is_lost ? 0 : number));
      }
      Displaced<T> gradient(numbers, offset);
      const Index of_floats = offset == static_cast<Index>(sizeof(T)) ? 4 : 0;
      for (const bool has_velocity : {false, true}) {
        Displaced<float> residual(before, of_floats);
        Displaced<float> velocity(std::vector<float>(before.size()), of_floats);
        const Velocity of_half{has_velocity ? velocity.span() : std::span<float>(), 0.5F, false};
        std::vector<Index> lost{3};
        add_gradient(context_, as_const(gradient.matrix()), 1, of_half, residual.span(),
                     Count(lost.data()));
        synchronize(context_);
        ASSERT_EQ(residual.values(), after);
        ASSERT_EQ(lost[0], 3 + not_finite);
        remove_gradient(context_, as_const(gradient.matrix()), 1, of_half, residual.span());
        synchronize(context_);
        ASSERT_EQ(residual.values(), before);
        ASSERT_EQ(velocity.values(), std::vector<float>(before.size()));
      }
    });
  });
}

TEST_F(Residual, KeepsTheRoundingErrorOfExtractedRows) {
  Random random(testing::seed());
  for_each_owed_dtype([&]<typename T>(T) {
    for (const Index width : {1, 4, 7, 8, 132, 1030, 4096}) {
      constexpr Index kRows = 9;
      std::vector<float> before;
      for (Index i = 0; i < kRows * width; ++i)
        before.push_back(static_cast<float>(random.uniform() - 0.5));
      std::vector<float> residual = before;
      const std::vector<Index> rows{7, 0, 3};
      const auto count = std::ssize(rows);
      std::vector<T> taken(static_cast<std::size_t>(count * width));
      std::vector<Index> lost{1};
      take_rows(context_, matrix_of(residual, width), rows, matrix_of(taken, width),
                Count(lost.data()));
      synchronize(context_);
      EXPECT_EQ(lost[0], 1);
      std::vector<float> expected = before;
      for (Index row = 0; row < count; ++row) {
        for (Index i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(rows[static_cast<std::size_t>(row)] * width + i);
          const T value = taken[static_cast<std::size_t>(row * width + i)];
          ASSERT_EQ(bits_of(std::vector<T>{value}),
                    bits_of(std::vector<T>{rounded<T>(before[at])}));
          expected[at] -= ValueTraits<T>::widen(value);
          // The extracted value and the rest add up to the old value exactly.
          ASSERT_EQ(
              static_cast<double>(expected[at]) + static_cast<double>(ValueTraits<T>::widen(value)),
              static_cast<double>(before[at]));
        }
      }
      EXPECT_EQ(residual, expected);
      give_back_rows(context_, matrix_of(std::as_const(taken), width), rows,
                     matrix_of(residual, width));
      synchronize(context_);
      EXPECT_EQ(residual, before);
    }
  });
}

TEST_F(Residual, RowsAtAnyAddress) {
  for_each_owed_dtype([&]<typename T>(T) {
    for (const Index width : {1, 4, 6, 128, 132, 516, 3000}) {
      for (const Index offset : {Index{0}, static_cast<Index>(sizeof(T)), Index{1}}) {
        SCOPED_TRACE(std::to_string(width) + " wide, offset " + std::to_string(offset));
        constexpr Index kRows = 5;
        std::vector<float> before;
        for (Index i = 0; i < kRows * width; ++i) before.push_back(static_cast<float>(i % 127 + 1));
        before[static_cast<std::size_t>(4 * width)] = kInfinity;
        const std::vector<Index> rows{4, 1};
        Displaced<float> residual(before, offset);
        Displaced<T> taken(std::vector<T>(static_cast<std::size_t>(2 * width)), offset);
        const auto rows_of = [&](Matrix all) {
          return Matrix{all.data, all.dtype, all.width / width, width};
        };
        std::vector<Index> lost{0};
        take_rows(context_, rows_of(residual.matrix()), rows, rows_of(taken.matrix()),
                  Count(lost.data()));
        synchronize(context_);
        EXPECT_EQ(lost[0], 1);
        std::vector<float> left = before;
        std::vector<float> expected;
        for (const Index row : rows) {
          for (Index i = row * width; i < (row + 1) * width; ++i) {
            float& element = left[static_cast<std::size_t>(i)];
            expected.push_back(element);
            if (element != kInfinity) element = 0;
          }
        }
        EXPECT_EQ(residual.values(), left);
        EXPECT_EQ(widened(taken.values()), expected);
        give_back_rows(context_, as_const(rows_of(taken.matrix())), rows,
                       rows_of(residual.matrix()));
        synchronize(context_);
        EXPECT_EQ(residual.values(), before);
      }
    }
  });
}

TEST_F(Residual, KeepsAndCountsElementsThatOverflow) {
  std::vector<float> residual{1e6F, 3, -1e6F, 5};
  const std::vector<float> before = residual;
  std::vector<f16> taken(2);
  const std::vector<Index> rows{0, 1};
  std::vector<Index> lost{0};
  take_rows(context_, matrix_of(residual, 1), rows, matrix_of(taken, 1), Count(lost.data()));
  synchronize(context_);
  EXPECT_EQ(lost[0], 1);
  EXPECT_EQ(residual, (std::vector<float>{1e6F, 0, -1e6F, 5}));
  EXPECT_EQ(widened(taken), (std::vector<float>{kInfinity, 3}));
  give_back_rows(context_, matrix_of(std::as_const(taken), 1), rows, matrix_of(residual, 1));
  synchronize(context_);
  EXPECT_EQ(residual, before);
}

TEST_F(Residual, RejectsOtherTypesAndSizes) {
  std::vector<float> residual(4);
  const std::vector<double> wide(4);
  const std::vector<float> three(3);
  std::vector<float> other(3);
  std::vector<Index> lost{0};
  const Count count(lost.data());
  EXPECT_THROW(add_gradient(context_, matrix_of(wide, 1), 1, {}, residual, count), ContractError);
  EXPECT_THROW(add_gradient(context_, matrix_of(three, 1), 1, {}, residual, count), ContractError);
  EXPECT_THROW(remove_gradient(context_, matrix_of(std::as_const(residual), 1), 1,
                               {other, 1, false}, residual),
               ContractError);
  const std::vector<Index> rows{1};
  EXPECT_THROW(take_rows(context_, matrix_of(residual, 2), rows, matrix_of(other, 3), count),
               ContractError);
  EXPECT_THROW(give_back_rows(context_, matrix_of(wide, 1), rows, matrix_of(residual, 1)),
               ContractError);
}

}  // namespace
}  // namespace sparsesync
