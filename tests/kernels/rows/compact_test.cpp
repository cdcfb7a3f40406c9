// ctest: DEVICES RACES
// compact(): the definition of a zero row, and results that exceed the capacity.
#include "kernels/rows/compact.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kernels/dense_rows.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::DenseRows;
using testing::Random;

using Compact = OperationTest;

/// The output of compact(), with a capacity of `room` rows.
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
  // Allocate two rows more than the capacity, to check that they stay unchanged.
  Found<T> found;
  found.indices.assign(static_cast<std::size_t>(room + 2), kUntouched);
  found.values.assign(static_cast<std::size_t>((room + 2) * width), value_of<T>(-77));
  Matrix values = matrix_of(found.values, width);
  values.rows = room;
  std::vector<Index> count(1, -1);
  compact(context, matrix_of(dense, width), first_row,
          std::span(found.indices).first(static_cast<std::size_t>(room)), values,
          Count(count.data()));
  found.count = count[0];
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

/// Returns the smallest positive number of a floating-point dtype.
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
    // Next to a nonzero element, -0.0 keeps its bits.
    const std::vector<T> kept(found.values.begin(), found.values.begin() + 4);
    EXPECT_EQ(bits_of(kept), bits_of(values_of<T>({denormal, -0.0, 0.0, -denormal})));
  });
}

TEST_F(Compact, KeepsNanAndInfinity) {
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

TEST_F(Compact, FindsANonzeroElementInAnyPosition) {
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

TEST_F(Compact, NumbersRowsFromTheFirst) {
  const std::vector<float> dense{0, 1, 2, 0};
  const Index first = (Index{1} << 33) + 5;
  EXPECT_EQ(
      compacted(context_, dense, 1, first, 4).indices,
      (std::vector<Index>{first + 1, first + 2, kUntouched, kUntouched, kUntouched, kUntouched}));
}

TEST_F(Compact, ReportsTheNeededCapacityAndWritesTheRowsThatFit) {
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

TEST_F(Compact, AcceptsNoRowsAndNoNonzeroRows) {
  for_each_dtype([&]<typename T>(T) {
    EXPECT_EQ(compacted(context_, std::vector<T>{}, 3, 7, 2).count, 0);
    EXPECT_EQ(compacted(context_, std::vector<T>(300), 3, 7, 2).count, 0);
    std::vector<Index> count(1, -1);
    compact(context_, ConstMatrix{nullptr, ValueTraits<T>::dtype, 0, 3}, 0, {},
            Matrix{nullptr, ValueTraits<T>::dtype, 0, 3}, Count(count.data()));
    EXPECT_EQ(count[0], 0);
    // A row without elements is a zero row.
    count[0] = -1;
    compact(context_, ConstMatrix{nullptr, ValueTraits<T>::dtype, 5, 0}, 0, {},
            Matrix{nullptr, ValueTraits<T>::dtype, 0, 0}, Count(count.data()));
    EXPECT_EQ(count[0], 0);
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

TEST_F(Compact, RequiresARowForEachIndex) {
  const std::vector<float> dense{1, 2};
  std::vector<Index> indices(2);
  std::vector<float> values(4);
  std::vector<Index> count(1);
  EXPECT_THROW(
      compact(context_, matrix_of(dense, 1), 0, indices, matrix_of(values, 1), Count(count.data())),
      ContractError);
  EXPECT_THROW(
      compact(context_, matrix_of(dense, 1), 0, indices, matrix_of(values, 2), Count(count.data())),
      ContractError);
}

/// Compares compact() with a row-by-row reference.
template <typename T>
void expect_compacted(const Context& context, const DenseRows<T>& dense, Index room) {
  const ConstMatrix matrix = dense.matrix();
  SCOPED_TRACE(::testing::Message() << matrix.rows << " rows of " << matrix.width << ", "
                                    << dense.nonzero().size() << " nonzero, capacity " << room);
  constexpr Index kFirst = 1'000'000'007;
  std::vector<Index> indices(static_cast<std::size_t>(room + 1), kUntouched);
  std::vector<T> values(static_cast<std::size_t>((room + 1) * matrix.width), value_of<T>(-77));
  std::vector<Index> count(1, -1);
  compact(context, matrix, kFirst, std::span(indices).first(static_cast<std::size_t>(room)),
          {reinterpret_cast<std::byte*>(values.data()), matrix.dtype, room, matrix.width},
          Count(count.data()));
  ASSERT_EQ(count[0], std::ssize(dense.nonzero()));
  EXPECT_EQ(indices.back(), kUntouched);
  const std::vector<T> behind(values.end() - matrix.width, values.end());
  EXPECT_EQ(bits_of(behind), bits_of(std::vector<T>(behind.size(), value_of<T>(-77))));
  for (Index i = 0; i < std::min(room, count[0]); ++i) {
    const Index row = dense.nonzero()[static_cast<std::size_t>(i)];
    ASSERT_EQ(indices[static_cast<std::size_t>(i)], kFirst + row) << "at " << i;
    const auto begin = values.begin() + i * matrix.width;
    ASSERT_EQ(bits_of(std::vector<T>(begin, begin + matrix.width)), bits_of(dense.row(row)))
        << "row " << row;
  }
}

TEST_F(Compact, AtAnyAddressOfAnyWidth) {
  Random random(testing::seed() + 1);
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 2, 3, 4, 5, 8, 9, 16, 33, 128, 300}) {
      for (const auto offset : {std::size_t{0}, sizeof(T), 3 * sizeof(T), std::size_t{1}}) {
        const Index rows = 1 + random.below(random.below(3) == 0 ? 3000 : 300);
        const double density =
            std::vector{0.02, 0.3, 1.0}[static_cast<std::size_t>(random.below(3))];
        const DenseRows<T> dense(random, rows, width, static_cast<Index>(offset), density);
        const auto found = std::ssize(dense.nonzero());
        for (const Index room : {found, Index{0}, found / 2, found + 3}) {
          expect_compacted(context_, dense, room);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_F(Compact, AroundTheSizesOfBlocks) {
  Random random(testing::seed() + 2);
  for (const Index rows :
       {31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 8192, 8193, 16'385}) {
    for (const Index width : {1, 4, 7}) {
      for (const double density : {0.05, 0.9}) {
        const DenseRows<float> floats(random, rows, width, 0, density);
        expect_compacted(context_, floats, rows);
        const DenseRows<bf16> halves(random, rows, width, 2, density);
        expect_compacted(context_, halves, rows / 3);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Compact, ManyBlocks) {
  Random random(testing::seed() + 3);
  // Full parts, next to parts that are empty or nearly empty.
  const auto in_parts = [&](Index row) {
    switch (row / 5000 % 4) {
      case 0:
        return true;
      case 1:
        return false;
      default:
        return random.below(30) == 0;
    }
  };
  expect_compacted(context_, DenseRows<float>(random, 200'000, 1, 4, 0.05), 200'000);
  expect_compacted(context_, DenseRows<float>(random, 200'000, 1, 0, in_parts), 150'000);
  expect_compacted(context_, DenseRows<bf16>(random, 300'000, 1, 6, in_parts), 300'000);
  expect_compacted(context_, DenseRows<double>(random, 90'000, 1, 8, in_parts), 90'000);
  expect_compacted(context_, DenseRows<std::int32_t>(random, 60'000, 4, 0, in_parts), 60'000);
  expect_compacted(context_, DenseRows<f16>(random, 60'000, 3, 0, in_parts), 20'000);
  expect_compacted(context_, DenseRows<std::int64_t>(random, 9'000, 20, 8, in_parts), 9'000);
  expect_compacted(context_, DenseRows<float>(random, 40, 20'000, 4, 0.5), 40);
  // Tiles of several steps, whose lists are too small for full parts.
  expect_compacted(context_, DenseRows<float>(random, 700'000, 1, 0, in_parts), 600'000);
  expect_compacted(context_, DenseRows<bf16>(random, 1'300'000, 1, 2, in_parts), 1'300'000);
  // Inputs so large that tiles have their maximum size.
  expect_compacted(context_, DenseRows<float>(random, 2'300'000, 1, 12, 0.052), 2'300'000);
  expect_compacted(context_, DenseRows<float>(random, 20'000, 128, 0, 0.052), 20'000);
}

/// Tests rows of sizeof(T) * width bytes in clusters of every size, so that a tile has no nonzero
/// rows, some, or only such rows.
template <typename T>
void expect_clustered(const Context& context, Random& random, Index width, Index tile_bytes) {
  const Index row_bytes = static_cast<Index>(sizeof(T)) * width;
  const Index tile = tile_bytes / row_bytes;
  for (const Index run : {Index{1}, Index{3}, Index{64}, Index{512}, tile, 3 * tile}) {
    for (const double density : {random.uniform() * 0.2, random.uniform(), 1.0}) {
      const Index rows = 16 * tile + random.below(tile);
      const Index offset = random.below(16 / row_bytes) * row_bytes;
      SCOPED_TRACE(::testing::Message()
                   << "runs of " << run << ", density " << density << ", offset " << offset);
      const DenseRows<T> dense(random, rows, width, offset, testing::in_runs(random, run, density));
      const auto found = std::ssize(dense.nonzero());
      expect_compacted(context, dense, random.below(2) == 0 ? found : random.below(found + 1));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(Compact, ManyClusters) {
  Random random(testing::seed() + 4);
  // Tiles of the minimum size.
  constexpr Index kTile = Index{1} << 14;
  expect_clustered<bf16>(context_, random, 1, kTile);
  expect_clustered<float>(context_, random, 1, kTile);
  expect_clustered<double>(context_, random, 1, kTile);
  expect_clustered<float>(context_, random, 4, kTile);
  // Tiles of the maximum size.
  expect_compacted(context_,
                   DenseRows<float>(random, 2'300'000, 1, 4, testing::in_runs(random, 512, 0.052)),
                   2'300'000);
  expect_compacted(context_,
                   DenseRows<bf16>(random, 4'500'000, 1, 2, testing::in_runs(random, 512, 0.1)),
                   4'500'000);
}

}  // namespace
}  // namespace sparsesync
