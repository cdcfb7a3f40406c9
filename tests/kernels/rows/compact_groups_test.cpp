// ctest: DEVICES
// compact_groups(), compared with a row-by-row reference, for many numbers of groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/base/threads.h"
#include "kernels/rows/compact.h"
#include "tests/kernels/dense_rows.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::DenseRows;
using testing::Random;

using CompactGroups = OperationTest;

constexpr Index kUntouched = -77;

/// @param room   capacity of each group, in rows
/// @param extra  rows of the result that belong to no group
template <typename T>
void expect_groups(const Context& context, const DenseRows<T>& dense, Index first_row,
                   const RowGroups& groups, Index room, Index extra = 0) {
  const ConstMatrix matrix = dense.matrix();
  SCOPED_TRACE(::testing::Message()
               << matrix.rows << " rows of " << matrix.width << ", " << dense.nonzero().size()
               << " nonzero, " << groups.groups() << " groups with a capacity of " << room);
  std::vector<std::vector<Index>> expected(static_cast<std::size_t>(groups.groups()));
  for (const Index row : dense.nonzero()) {
    expected[static_cast<std::size_t>(groups.locate(first_row + row).group)].push_back(row);
  }
  const Index all = groups.groups() * room + extra;
  std::vector<Index> indices(static_cast<std::size_t>(all + 1), kUntouched);
  std::vector<T> values(static_cast<std::size_t>((all + 1) * matrix.width), value_of<T>(-77));
  std::vector<Index> counts(expected.size(), -1);
  compact_groups(
      context, matrix, first_row, groups, std::span(indices).first(static_cast<std::size_t>(all)),
      {reinterpret_cast<std::byte*>(values.data()), matrix.dtype, all, matrix.width}, counts);
  EXPECT_EQ(indices.back(), kUntouched);
  const std::vector<T> behind(values.end() - matrix.width, values.end());
  EXPECT_EQ(bits_of(behind), bits_of(std::vector<T>(behind.size(), value_of<T>(-77))));
  for (std::size_t group = 0; group < expected.size(); ++group) {
    ASSERT_EQ(counts[group], std::ssize(expected[group])) << "group " << group;
    for (Index i = 0; i < std::min(room, counts[group]); ++i) {
      const Index row = expected[group][static_cast<std::size_t>(i)];
      const Index at = static_cast<Index>(group) * room + i;
      ASSERT_EQ(indices[static_cast<std::size_t>(at)], first_row + row)
          << "group " << group << " at " << i;
      const auto begin = values.begin() + at * matrix.width;
      ASSERT_EQ(bits_of(std::vector<T>(begin, begin + matrix.width)), bits_of(dense.row(row)))
          << "row " << row;
    }
  }
}

RowGroups random_groups(Random& random, Index rows, Index groups) {
  return RowGroups(
      {.rows = rows, .groups = groups, .offset = random.below(groups), .seed = random.next()});
}

TEST_F(CompactGroups, AtAnyAddressOfAnyWidth) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 2, 3, 4, 8, 9, 33, 128}) {
      for (const auto offset : {std::size_t{0}, 3 * sizeof(T), std::size_t{1}}) {
        const Index rows = 1 + random.below(random.below(3) == 0 ? 3000 : 300);
        const double density =
            std::vector{0.02, 0.3, 1.0}[static_cast<std::size_t>(random.below(3))];
        const DenseRows<T> dense(random, rows, width, static_cast<Index>(offset), density);
        const Index count = 1 + random.below(70);
        const Index first_row = random.below(1000);
        const RowGroups groups = random_groups(random, first_row + rows + random.below(9), count);
        for (const Index room : {rows, Index{0}, rows / count / 2}) {
          expect_groups(context_, dense, first_row, groups, room, random.below(count));
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_F(CompactGroups, ForAnyNumberOfGroups) {
  Random random(testing::seed() + 1);
  const Index rows = 6000;
  for (const Index count : {1,  2,  3,  4,   5,   7,   8,   9,   16,  31,  32,  33,
                            63, 64, 65, 127, 128, 129, 255, 256, 257, 600, 7000}) {
    const RowGroups groups = random_groups(random, rows, count);
    const Index room = std::max<Index>(rows / count, 4);
    for (const double density : {0.05, 0.9}) {
      expect_groups(context_, DenseRows<float>(random, rows, 1, 0, density), 0, groups, room);
      expect_groups(context_, DenseRows<bf16>(random, rows, 6, 2, density), 0, groups, room);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CompactGroups, ManyBlocks) {
  Random random(testing::seed() + 2);
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
  for (const Index count : {3, 16, 64, 200}) {
    const RowGroups groups = random_groups(random, 300'000, count);
    const Index room = 100'000 / count;
    expect_groups(context_, DenseRows<float>(random, 200'000, 1, 4, 0.05), 99'999, groups, room);
    expect_groups(context_, DenseRows<float>(random, 200'000, 1, 0, in_parts), 0, groups, room);
    expect_groups(context_, DenseRows<bf16>(random, 300'000, 1, 6, in_parts), 0, groups, room);
    expect_groups(context_, DenseRows<double>(random, 90'000, 1, 8, in_parts), 0, groups, room);
    expect_groups(context_, DenseRows<f16>(random, 60'000, 3, 0, in_parts), 0, groups, room);
    expect_groups(context_, DenseRows<float>(random, 5'000, 40, 4, 0.05), 0, groups, room);
    if (HasFatalFailure()) return;
  }
  expect_groups(context_, DenseRows<float>(random, 2'300'000, 1, 12, 0.052), 0,
                random_groups(random, 2'300'000, 64), 3'000);
}

/// Tests rows of sizeof(T) * width bytes in clusters of every size, so that a tile has no nonzero
/// rows, some, or only such rows.
template <typename T>
void expect_clustered(const Context& context, Random& random, Index width) {
  const Index row_bytes = static_cast<Index>(sizeof(T)) * width;
  const Index tile = (Index{1} << 17) / row_bytes;  // rows of the largest tile
  for (const Index count : {1, 2, 16, 64, 65, 128, 129}) {
    for (const Index run : {Index{1}, Index{3}, Index{64}, Index{512}, tile, 3 * tile}) {
      for (const double density : {random.uniform() * 0.2, random.uniform(), 1.0}) {
        // Short runs fill all lists equally, so one density above the capacity of the lists is
        // enough.
        if (density == 1.0 && run > 1) continue;
        const Index rows = tile + random.below(tile);
        const Index offset = random.below(16 / row_bytes) * row_bytes;
        SCOPED_TRACE(::testing::Message()
                     << "runs of " << run << ", density " << density << ", offset " << offset);
        const DenseRows<T> dense(random, rows, width, offset,
                                 testing::in_runs(random, run, density));
        const Index first_row = random.below(1000);
        const RowGroups groups = random_groups(random, first_row + rows, count);
        const Index mean = std::ssize(dense.nonzero()) / count;
        const Index room = random.below(2) == 0 ? rows / count + 64 : random.below(mean + 1);
        expect_groups(context, dense, first_row, groups, room);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CompactGroups, ManyClusters) {
  Random random(testing::seed() + 5);
  expect_clustered<bf16>(context_, random, 1);
  expect_clustered<float>(context_, random, 1);
  expect_clustered<double>(context_, random, 1);
  expect_clustered<float>(context_, random, 4);
}

TEST_F(CompactGroups, AroundAndBeyond2To32) {
  Random random(testing::seed() + 3);
  constexpr Index kTwo32 = Index{1} << 32;
  for (const Index rows :
       {Index{1}, Index{2}, Index{3}, kTwo32 - 1, kTwo32, kTwo32 + 1, Index{1} << 50}) {
    for (const Index count : {1, 7, 64, 100}) {
      const RowGroups groups = random_groups(random, rows, count);
      const Index here = std::min<Index>(rows, 700);
      for (const Index width : {1, 5}) {
        expect_groups(context_, DenseRows<float>(random, here, width, 0, 0.5), rows - here, groups,
                      here);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CompactGroups, NoRows) {
  const RowGroups groups({.rows = 10, .groups = 3});
  std::vector<Index> counts(3, -1);
  compact_groups(context_, {nullptr, DType::f32, 0, 4}, 0, groups, {}, {nullptr, DType::f32, 0, 4},
                 counts);
  EXPECT_EQ(counts, (std::vector<Index>{0, 0, 0}));
  counts.assign(3, -1);
  compact_groups(context_, {nullptr, DType::f32, 10, 0}, 0, groups, {}, {nullptr, DType::f32, 0, 0},
                 counts);
  EXPECT_EQ(counts, (std::vector<Index>{0, 0, 0}));
  Random random(testing::seed());
  expect_groups(context_, DenseRows<float>(random, 10, 4, 0, 0), 0, groups, 2);
}

TEST_F(CompactGroups, ThreadsChangeNothing) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the CPU implementation uses threads";
  Random random(testing::seed() + 4);
  for (const int count : {2, 3, 8}) {
    Threads threads(count);
    const Context context(memory_, threads);
    for (const Index groups : {1, 5, 64, 3000, 9000}) {
      const RowGroups of_rows = random_groups(random, 200'000, groups);
      expect_groups(context, DenseRows<float>(random, 200'000, 1, 4, 0.1), 0, of_rows,
                    20'000 / groups);
      expect_groups(context, DenseRows<double>(random, 20'000, 9, 8, 0.6), 777, of_rows,
                    20'000 / groups);
    }
  }
}

TEST_F(CompactGroups, RequiresViewsOfTheRightSize) {
  const std::vector<float> dense{1, 2};
  std::vector<Index> indices(2);
  std::vector<float> values(4);
  std::vector<Index> counts(3);
  const RowGroups groups({.rows = 2, .groups = 3});
  const ConstMatrix matrix = matrix_of(dense, 1);
  EXPECT_THROW(compact_groups(context_, matrix, 0, groups, indices, matrix_of(values, 1), counts),
               ContractError);
  values.resize(2);
  EXPECT_THROW(compact_groups(context_, matrix, 0, groups, indices, matrix_of(values, 1),
                              std::span(counts).first(2)),
               ContractError);
  EXPECT_THROW(compact_groups(context_, matrix, 1, groups, indices, matrix_of(values, 1), counts),
               ContractError);
  compact_groups(context_, matrix, 0, groups, indices, matrix_of(values, 1), counts);
}

}  // namespace
}  // namespace sparsesync
