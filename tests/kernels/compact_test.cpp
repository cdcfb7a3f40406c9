// compact: what is a zero row, and what happens where there is no room.
#include "kernels/compact.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Compact = OperationTest;

/// What compact() made, with room for `room` rows.
template <typename T>
struct Found {
  std::vector<Index> indices;
  std::vector<T> values;
  Index count = 0;
};

constexpr Index kUntouched = -77;

template <typename T>
Found<T> compacted(const Context& context, const std::vector<T>& dense, Index width,
                   Index first_row, Index room) {
  // Two more than there is room for, to see that they stay.
  Found<T> found;
  found.indices.assign(static_cast<std::size_t>(room + 2), kUntouched);
  found.values.assign(static_cast<std::size_t>((room + 2) * width), value_of<T>(-77));
  Matrix values = matrix_of(found.values, width);
  values.rows = room;
  compact(context, matrix_of(dense, width), first_row,
          std::span(found.indices).first(static_cast<std::size_t>(room)), values,
          Count(&found.count));
  return found;
}

TEST_F(Compact, KeepsRowsThatSumToZero) {
  for_each_dtype([&]<typename T>(T) {
    const std::vector<T> dense = values_of<T>({0, 0, 1, -1, 0, 0, 0, 2, -3, 0});
    const Found<T> found = compacted(context_, dense, 2, 0, 3);
    EXPECT_EQ(found.count, 3);
    EXPECT_EQ(found.indices, (std::vector<Index>{1, 3, 4, kUntouched, kUntouched}));
    EXPECT_EQ(bits_of(found.values),
              bits_of(values_of<T>({1, -1, 0, 2, -3, 0, -77, -77, -77, -77})));
  });
}

/// The smallest number of a floating-point dtype.
double smallest(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-1074;
    case DType::f16:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-133;
    default:
      return 0x1p-149;
  }
}

TEST_F(Compact, DropsNegativeZeroAndKeepsTheSmallestNumbers) {
  for_each_float_dtype([&]<typename T>(T) {
    const double denormal = smallest(ValueTraits<T>::dtype);
    const std::vector<T> dense =
        values_of<T>({-0.0, 0.0, -0.0, -0.0, denormal, -0.0, 0.0, -denormal});
    const Found<T> found = compacted(context_, dense, 2, 0, 4);
    EXPECT_EQ(found.count, 2);
    EXPECT_EQ(found.indices[0], 2);
    EXPECT_EQ(found.indices[1], 3);
    // Beside a number that is not zero -0.0 stays as it is.
    const std::vector<T> kept(found.values.begin(), found.values.begin() + 4);
    EXPECT_EQ(bits_of(kept), bits_of(values_of<T>({denormal, -0.0, 0.0, -denormal})));
  });
}

TEST_F(Compact, NanAndInfinityTravel) {
  for_each_float_dtype([&]<typename T>(T) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const std::vector<T> dense = values_of<T>({0, kNan, 0, 0, 0, kInf, -kInf, 0});
    const Found<T> found = compacted(context_, dense, 2, 0, 4);
    EXPECT_EQ(found.count, 3);
    EXPECT_EQ(found.indices[0], 0);
    EXPECT_EQ(found.indices[1], 2);
    EXPECT_EQ(found.indices[2], 3);
    const std::vector<T> kept(found.values.begin(), found.values.begin() + 6);
    EXPECT_EQ(bits_of(kept), bits_of(values_of<T>({0, kNan, 0, kInf, -kInf, 0})));
  });
}

TEST_F(Compact, FindsAnElementWhereverItIs) {
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 3, 128}) {
      for (Index column = 0; column < width; ++column) {
        std::vector<T> dense(static_cast<std::size_t>(3 * width));
        dense[static_cast<std::size_t>(width + column)] = value_of<T>(5);
        const Found<T> found = compacted(context_, dense, width, 0, 3);
        ASSERT_EQ(found.count, 1) << "width " << width << ", column " << column;
        ASSERT_EQ(found.indices[0], 1);
        const std::vector<T> kept(found.values.begin(), found.values.begin() + width);
        std::vector<double> numbers(static_cast<std::size_t>(width));
        numbers[static_cast<std::size_t>(column)] = 5;
        ASSERT_EQ(bits_of(kept), bits_of(values_of<T>(numbers)));
      }
    }
  });
}

TEST_F(Compact, NamesRowsFromTheFirst) {
  const std::vector<float> dense{0, 1, 2, 0};
  const Index first = (Index{1} << 33) + 5;
  EXPECT_EQ(
      compacted(context_, dense, 1, first, 4).indices,
      (std::vector<Index>{first + 1, first + 2, kUntouched, kUntouched, kUntouched, kUntouched}));
}

TEST_F(Compact, SaysHowMuchRoomItNeedsAndWritesWhatFits) {
  for_each_dtype([&]<typename T>(T) {
    const std::vector<T> dense = values_of<T>({1, 0, 2, 3, 0, 4});
    for (Index room = 0; room <= 6; ++room) {
      const Found<T> found = compacted(context_, dense, 1, 10, room);
      EXPECT_EQ(found.count, 4);
      std::vector<Index> indices{10, 12, 13, 15};
      std::vector<double> values{1, 2, 3, 4};
      indices.resize(static_cast<std::size_t>(std::min<Index>(room, 4)));
      values.resize(indices.size());
      indices.resize(static_cast<std::size_t>(room + 2), kUntouched);
      values.resize(indices.size(), -77);
      EXPECT_EQ(found.indices, indices) << "room " << room;
      EXPECT_EQ(bits_of(found.values), bits_of(values_of<T>(values))) << "room " << room;
    }
  });
}

TEST_F(Compact, NoRowsAndNoRowsThatAreNotZero) {
  for_each_dtype([&]<typename T>(T) {
    EXPECT_EQ(compacted(context_, std::vector<T>{}, 3, 7, 2).count, 0);
    EXPECT_EQ(compacted(context_, std::vector<T>(300), 3, 7, 2).count, 0);
    Index count = -1;
    compact(context_, ConstMatrix{nullptr, ValueTraits<T>::dtype, 0, 3}, 0, {},
            Matrix{nullptr, ValueTraits<T>::dtype, 0, 3}, Count(&count));
    EXPECT_EQ(count, 0);
  });
}

TEST_F(Compact, FindsRandomRows) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 3, 128}) {
      const Index rows = 1 + random.below(500);
      const std::vector<Index> expected =
          testing::distinct_rows(random, rows, random.below(rows + 1));
      std::vector<T> dense(static_cast<std::size_t>(rows * width), value_of<T>(-0.0));
      std::vector<T> values;
      for (const Index row : expected) {
        const auto begin = static_cast<std::size_t>(row * width);
        const auto column = static_cast<std::size_t>(random.below(width));
        dense[begin + column] = value_of<T>(static_cast<double>(1 + random.below(255)));
        values.insert(
            values.end(), dense.begin() + static_cast<std::ptrdiff_t>(begin),
            dense.begin() + static_cast<std::ptrdiff_t>(begin + static_cast<std::size_t>(width)));
      }
      Found<T> found = compacted(context_, dense, width, 0, rows);
      ASSERT_EQ(found.count, static_cast<Index>(expected.size()));
      found.indices.resize(expected.size());
      found.values.resize(values.size());
      EXPECT_EQ(found.indices, expected);
      EXPECT_EQ(bits_of(found.values), bits_of(values));
    }
  });
}

TEST_F(Compact, WantsARowForEachIndex) {
  const std::vector<float> dense{1, 2};
  std::vector<Index> indices(2);
  std::vector<float> values(4);
  Index count = 0;
  EXPECT_THROW(
      compact(context_, matrix_of(dense, 1), 0, indices, matrix_of(values, 1), Count(&count)),
      ContractError);
  EXPECT_THROW(
      compact(context_, matrix_of(dense, 1), 0, indices, matrix_of(values, 2), Count(&count)),
      ContractError);
}

}  // namespace
}  // namespace sparsesync
