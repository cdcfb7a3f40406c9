// ctest: DEVICES
// Blocks: converts rows to blocks and back, compared with the flat array.
#include "kernels/rows/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/base/bits.h"
#include "kernels/base/threads.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using Blocks = OperationTest;

constexpr Index kUntouched = -77;

/// The output of an operation, with a capacity of `room` rows or blocks. The element past the
/// capacity must stay unchanged.
template <typename T>
struct Found {
  std::vector<Index> numbers;
  std::vector<T> values;
  std::vector<Index> count_of_one = std::vector<Index>(1, -1);
  Index count = 0;  // valid after read_count()

  Found(Index room, Index width)
      : numbers(static_cast<std::size_t>(room + 1), kUntouched),
        values(static_cast<std::size_t>((room + 1) * width), value_of<T>(-77)) {}
  std::span<Index> room() { return std::span(numbers).first(numbers.size() - 1); }
  Matrix matrix(Index width) {
    Matrix all = matrix_of(values, width);
    --all.rows;
    return all;
  }
  Count counted() { return Count(count_of_one.data()); }
  void read_count() { count = count_of_one[0]; }
  void expect_nothing_behind(Index width) const {
    EXPECT_EQ(numbers.back(), kUntouched);
    const std::vector<T> behind(values.end() - width, values.end());
    EXPECT_EQ(bits_of(behind), bits_of(std::vector<T>(behind.size(), value_of<T>(-77))));
  }
  /// Truncates the output to the used part.
  void keep(Index width) {
    expect_nothing_behind(width);
    ASSERT_LE(count, static_cast<Index>(numbers.size()) - 1);
    numbers.resize(static_cast<std::size_t>(count));
    values.resize(static_cast<std::size_t>(count * width));
  }
};

/// Expects the same output from both, if the capacity was sufficient.
template <typename T>
void expect_same(const Found<T>& one, const Found<T>& other) {
  ASSERT_EQ(one.count, other.count);
  if (one.count >= std::ssize(one.numbers)) return;
  EXPECT_EQ(one.numbers, other.numbers);
  EXPECT_EQ(bits_of(one.values), bits_of(other.values));
}

/// Converts to blocks from unaligned values and from aligned values, and expects the same output.
template <typename T>
Found<T> to_blocks(const Context& context, const std::vector<Index>& rows,
                   const std::vector<T>& values, Index width, Index block, Index room) {
  Found<T> found(room, block);
  rows_to_blocks(context, {rows, Unaligned<T>(values, width).matrix()}, found.room(),
                 found.matrix(block), found.counted());
  found.read_count();
  Found<T> again(room, block);
  rows_to_blocks(context, {rows, matrix_of(values, width)}, again.room(), again.matrix(block),
                 again.counted());
  again.read_count();
  expect_same(found, again);
  return found;
}

template <typename T>
Found<T> to_rows(const Context& context, const std::vector<Index>& blocks,
                 const std::vector<T>& values, Index block, Index total_rows, Index width,
                 Index room) {
  Found<T> found(room, width);
  blocks_to_rows(context, {blocks, Unaligned<T>(values, block).matrix()}, total_rows, found.room(),
                 found.matrix(width), found.counted());
  found.read_count();
  Found<T> again(room, width);
  blocks_to_rows(context, {blocks, matrix_of(values, block)}, total_rows, again.room(),
                 again.matrix(width), again.counted());
  again.read_count();
  expect_same(found, again);
  return found;
}

TEST_F(Blocks, HoldRowsPaddedWithZeros) {
  for_each_dtype([&]<typename T>(T) {
    // Rows of 3 elements, in blocks of 4 elements. Row 1 is flat elements 3 to 5 and spans two
    // blocks. Row 3 is flat elements 9 to 11, all in block 2.
    Found<T> found = to_blocks(context_, {1, 3}, values_of<T>({1, 2, 3, 4, 5, 6}), 3, 4, 3);
    found.keep(4);
    EXPECT_EQ(found.numbers, (std::vector<Index>{0, 1, 2}));
    EXPECT_EQ(bits_of(found.values), bits_of(values_of<T>({0, 0, 0, 1, 2, 3, 0, 0, 0, 4, 5, 6})));
    Found<T> back = to_rows(context_, found.numbers, found.values, 4, 4, 3, 2);
    back.keep(3);
    EXPECT_EQ(back.numbers, (std::vector<Index>{1, 3}));
    EXPECT_EQ(bits_of(back.values), bits_of(values_of<T>({1, 2, 3, 4, 5, 6})));
  });
}

TEST_F(Blocks, KeepTouchedRowsThatAreZero) {
  Found<float> found = to_blocks<float>(context_, {2}, {0, -0.0F}, 2, 2, 1);
  found.keep(2);
  EXPECT_EQ(found.numbers, (std::vector<Index>{2}));
  EXPECT_EQ(bits_of(found.values), bits_of(std::vector<float>{0, -0.0F}));
  Found<float> back = to_rows<float>(context_, found.numbers, found.values, 2, 3, 2, 1);
  EXPECT_EQ(back.count, 0) << "-0.0 counts as zero";
}

TEST_F(Blocks, RowsKeepNegativeZeroNanAndInfinity) {
  for_each_float_dtype([&]<typename T>(T) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const std::vector<T> values = values_of<T>({-0.0, 1, kNan, 0, 0, -kInf, 0, -0.0});
    Found<T> found = to_rows(context_, {0, 1}, values, 4, 4, 2, 4);
    found.keep(2);
    EXPECT_EQ(found.numbers, (std::vector<Index>{0, 1, 2}));
    const std::vector<T> kept(values.begin(), values.begin() + 6);
    EXPECT_EQ(bits_of(found.values), bits_of(kept));
  });
}

// Row 1 is elements 5 to 9. The first and the third of its blocks of 2 elements are present.
TEST_F(Blocks, MissingBlocksAreZero) {
  Found<float> found = to_rows<float>(context_, {2, 4}, {1, 2, 3, 4}, 2, 3, 5, 3);
  found.keep(5);
  EXPECT_EQ(found.numbers, (std::vector<Index>{0, 1}));
  EXPECT_EQ(found.values, (std::vector<float>{0, 0, 0, 0, 1, 2, 0, 0, 3, 4}));
}

TEST_F(Blocks, PaddingOfTheLastBlockIsNotARow) {
  Found<float> found = to_rows<float>(context_, {1}, {1, 2, 3, 4}, 4, 3, 2, 3);
  found.keep(2);
  EXPECT_EQ(found.numbers, (std::vector<Index>{2}));
  EXPECT_EQ(found.values, (std::vector<float>{1, 2}));
  // A block that is larger than the matrix.
  Found<float> all = to_blocks<float>(context_, {0, 2}, {1, 2, 3, 4}, 2, 100, 1);
  all.keep(100);
  std::vector<float> expected(100);
  expected[0] = 1;
  expected[1] = 2;
  expected[4] = 3;
  expected[5] = 4;
  EXPECT_EQ(all.values, expected);
}

TEST_F(Blocks, ReportTheNeededCapacity) {
  const std::vector<Index> rows{0, 1, 5};
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  for (const Index room : {0, 1, 2}) {
    const Found<float> found = to_blocks(context_, rows, values, 2, 2, room);
    EXPECT_EQ(found.count, 3);
    found.expect_nothing_behind(2);
    const Found<float> back = to_rows(context_, rows, values, 2, 6, 2, room);
    EXPECT_EQ(back.count, 3);
    back.expect_nothing_behind(2);
  }
}

TEST_F(Blocks, OfNoRowsAreEmpty) {
  EXPECT_EQ(to_blocks<float>(context_, {}, {}, 3, 4, 2).count, 0);
  EXPECT_EQ(to_rows<float>(context_, {}, {}, 4, 10, 3, 2).count, 0);
}

TEST_F(Blocks, FarBeyond2To32) {
  const Index row = Index{1} << 40;
  Found<float> found = to_blocks<float>(context_, {row}, {1, 2, 3, 4}, 4, 3, 2);
  found.keep(3);
  EXPECT_EQ(found.numbers, (std::vector<Index>{row / 3 * 4 + 1, row / 3 * 4 + 2}));
  Found<float> back = to_rows(context_, found.numbers, found.values, 3, row + 1, 4, 1);
  back.keep(4);
  EXPECT_EQ(back.numbers, (std::vector<Index>{row}));
  EXPECT_EQ(back.values, (std::vector<float>{1, 2, 3, 4}));
}

/// Builds the flat array, padded to whole blocks.
template <typename T>
std::vector<T> flat(const std::vector<Index>& numbers, const std::vector<T>& values, Index width,
                    std::size_t elements) {
  std::vector<T> array(elements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Index at =
        numbers[i / static_cast<std::size_t>(width)] * width + static_cast<Index>(i) % width;
    if (at < static_cast<Index>(elements)) array[static_cast<std::size_t>(at)] = values[i];
  }
  return array;
}

template <typename T>
void expect_there_and_back(const Context& context, Random& random, Index total_rows, Index width,
                           Index block, Index most_rows) {
  SCOPED_TRACE(::testing::Message()
               << total_rows << " rows of " << width << ", blocks of " << block);
  const std::vector<Index> rows =
      testing::distinct_rows(random, total_rows, random.below(std::min(total_rows, most_rows) + 1));
  std::vector<T> values;
  // Many zeros; sometimes most elements of a row are zero.
  const bool few = random.below(2) == 0;
  for (std::size_t i = 0; i < rows.size() * static_cast<std::size_t>(width); ++i) {
    const bool is_zero = few && random.below(width) != 0;
    values.push_back(value_of<T>(static_cast<double>(is_zero ? 0 : random.below(4))));
  }
  const auto padded = static_cast<std::size_t>(round_up(total_rows * width, block));
  std::vector<T> array = flat(rows, values, width, padded);

  std::set<Index> touched;
  for (const Index row : rows) {
    for (Index e = row * width; e < (row + 1) * width; ++e) touched.insert(e / block);
  }
  const std::vector<Index> numbers(touched.begin(), touched.end());
  Found<T> found = to_blocks(context, rows, values, width, block,
                             static_cast<Index>(touched.size()) + random.below(3));
  found.keep(block);
  ASSERT_EQ(found.numbers, numbers);
  std::vector<T> expected;
  for (const Index number : numbers) {
    const auto begin = array.begin() + number * block;
    expected.insert(expected.end(), begin, begin + block);
  }
  ASSERT_EQ(bits_of(found.values), bits_of(expected));

  // Drop some blocks before converting back.
  std::vector<Index> kept;
  std::vector<T> kept_values;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto begin = found.values.begin() + static_cast<Index>(i) * block;
    if (random.below(4) == 0) {
      std::fill_n(array.begin() + numbers[i] * block, block, T{});
    } else {
      kept.push_back(numbers[i]);
      kept_values.insert(kept_values.end(), begin, begin + block);
    }
  }
  std::vector<Index> nonzero;
  expected.clear();
  for (Index row = 0; row < total_rows; ++row) {
    const std::vector<T> elements(array.begin() + row * width, array.begin() + (row + 1) * width);
    if (bits_of(elements) == bits_of(std::vector<T>(elements.size()))) continue;
    nonzero.push_back(row);
    expected.insert(expected.end(), elements.begin(), elements.end());
  }
  Found<T> back = to_rows(context, kept, kept_values, block, total_rows, width,
                          static_cast<Index>(nonzero.size()) + random.below(3));
  back.keep(width);
  ASSERT_EQ(back.numbers, nonzero);
  ASSERT_EQ(bits_of(back.values), bits_of(expected));
}

TEST_F(Blocks, RoundTripsOfAnySize) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (int i = 0; i < 150; ++i) {
      const Index rows = 1 + random.below(60);
      const Index width = 1 + random.below(random.below(2) == 0 ? 4 : 40);
      const Index block = 1 + random.below(random.below(2) == 0 ? 6 : 300);
      expect_there_and_back<T>(context_, random, rows, width, block, 20);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_F(Blocks, ManyBlocksAndLargeBlocks) {
  Random random(testing::seed() + 2);
  for (const Index most : {300, 1'500, 30'000}) {
    expect_there_and_back<float>(context_, random, 40'000, 1, 256, most);
    expect_there_and_back<float>(context_, random, 40'000, 4, 256, most);
    expect_there_and_back<bf16>(context_, random, 40'000, 7, 5, most);
    expect_there_and_back<double>(context_, random, 20'000, 3, 1, most);
    expect_there_and_back<f16>(context_, random, 20'000, 8, 64, most);
    if (HasFatalFailure()) return;
  }
  expect_there_and_back<float>(context_, random, 3'000, 128, 64, 2'000);
  expect_there_and_back<float>(context_, random, 3'000, 100, 256, 2'000);
  // Rows that span many blocks, blocks that span many rows, and blocks that are divided among
  // threads.
  expect_there_and_back<std::int64_t>(context_, random, 90, 4'001, 3'000, 60);
  for (int i = 0; i < 4; ++i) {
    expect_there_and_back<bf16>(context_, random, 40, 30'000, 7, 30);
    expect_there_and_back<bf16>(context_, random, 30, 20'000, 19'000, 20);
  }
  expect_there_and_back<float>(context_, random, 100'000, 1, 9'000, 3'000);
  expect_there_and_back<f16>(context_, random, 60'000, 3, 50'001, 20'000);
  expect_there_and_back<double>(context_, random, 20, 70'001, 60'000, 15);
}

TEST_F(Blocks, ReportTheNeededCapacityForManyRows) {
  std::vector<Index> rows(20'000);
  std::iota(rows.begin(), rows.end(), Index{0});
  const std::vector<float> values(rows.size() * 16, 1);
  for (const Index room : {0, 7, 19'999}) {
    const Found<float> found = to_blocks(context_, rows, values, 16, 16, room);
    EXPECT_EQ(found.count, 20'000);
    found.expect_nothing_behind(16);
    const Found<float> back = to_rows(context_, rows, values, 16, 20'000, 16, room);
    EXPECT_EQ(back.count, 20'000);
    back.expect_nothing_behind(16);
  }
}

TEST_F(Blocks, ThreadsChangeNothing) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the CPU implementation uses threads";
  Random random(testing::seed() + 1);
  for (const int count : {2, 3, 5}) {
    Threads threads(count);
    const Context context(memory_, threads);
    expect_there_and_back<float>(context, random, 40'000, 7, 5, 30'000);
    expect_there_and_back<float>(context, random, 40'000, 3, 256, 30'000);
    expect_there_and_back<float>(context, random, 3'000, 333, 64, 2'000);
    expect_there_and_back<std::int64_t>(context, random, 90, 4'001, 3'000, 60);
    // Too little capacity.
    std::vector<Index> rows(20'000);
    std::iota(rows.begin(), rows.end(), Index{0});
    const std::vector<float> values(rows.size() * 16, 1);
    EXPECT_EQ(to_blocks(context, rows, values, 16, 16, 7).count, 20'000);
    EXPECT_EQ(to_rows(context, rows, values, 16, 20'000, 16, 7).count, 20'000);
  }
}

TEST_F(Blocks, RequireViewsOfTheRightSize) {
  std::vector<float> values(4);
  std::vector<Index> one{0};
  std::vector<Index> count(1);
  const ConstMatrix two_rows = matrix_of(std::as_const(values), 2);
  EXPECT_THROW(
      rows_to_blocks(context_, {one, two_rows}, one, matrix_of(values, 4), Count(count.data())),
      ContractError);
  EXPECT_THROW(
      blocks_to_rows(context_, {one, two_rows}, 4, one, matrix_of(values, 4), Count(count.data())),
      ContractError);
  EXPECT_THROW(rows_to_blocks(context_, {{}, {nullptr, DType::f32, 0, 1}}, {},
                              {nullptr, DType::f32, 0, 0}, Count(count.data())),
               ContractError);
}

}  // namespace
}  // namespace sparsesync
