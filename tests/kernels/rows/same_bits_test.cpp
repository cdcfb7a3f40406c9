// Results have the same bits for any number of threads. The inputs are large enough for operations
// to divide their work.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/base/threads.h"
#include "kernels/rows/aggregate.h"
#include "kernels/rows/coalesce.h"
#include "kernels/rows/compact.h"
#include "kernels/rows/rows.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

using SameBits = OperationTest;

/// Calls body(context) with contexts of one thread and of several threads.
template <typename Body>
void for_each_team(HostMemory& memory, Body&& body) {
  for (const int count : {1, 2, 3, 7}) {
    SCOPED_TRACE(::testing::Message() << count << " threads");
    Threads threads(count);
    body(Context(memory, threads));
  }
}

/// Draws numbers whose sums depend on the order of addition.
template <typename T>
std::vector<T> random_values(Random& random, Index count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    value = value_of<T>((random.uniform() - 0.5) * (random.below(4) == 0 ? 0x1p12 : 4.0));
  }
  return values;
}

/// The output of compact(), with a capacity of `room` rows.
template <typename T>
struct Compacted {
  std::vector<Index> indices;
  std::vector<T> values;
  Index count = -1;

  Compacted(const Context& context, const std::vector<T>& dense, Index width, Index room)
      : indices(static_cast<std::size_t>(room), -1),
        values(static_cast<std::size_t>(room * width)) {
    compact(context, matrix_of(dense, width), 5, indices, matrix_of(values, width), Count(&count));
    // compact() may overwrite capacity that it does not need.
    indices.resize(static_cast<std::size_t>(std::min(count, room)));
    values.resize(indices.size() * static_cast<std::size_t>(width));
  }
};

template <typename T>
void expect_same_compact(HostMemory& memory, const std::vector<T>& dense, Index width, Index room) {
  const Compacted<T> expected(Context(memory), dense, width, room);
  for_each_team(memory, [&](const Context& context) {
    const Compacted<T> found(context, dense, width, room);
    EXPECT_EQ(found.count, expected.count);
    EXPECT_EQ(found.indices, expected.indices) << "capacity " << room;
    EXPECT_EQ(bits_of(found.values), bits_of(expected.values)) << "capacity " << room;
  });
}

TEST_F(SameBits, Compact) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 5, 40}) {
      const Index rows = 400'000 / width / static_cast<Index>(sizeof(T));
      std::vector<T> dense(static_cast<std::size_t>(rows * width));
      const auto touch = [&](Index row) {
        dense[static_cast<std::size_t>(row * width + random.below(width))] = value_of<T>(3);
      };
      for (const Index row : distinct_rows(random, rows, rows / 10)) touch(row);
      for (const Index room : {rows / 10, rows, rows / 10 - 1, rows / 20, Index{1}, Index{0}}) {
        expect_same_compact(memory_, dense, width, room);
      }
      // All nonzero rows lie in one thread's part, so that they exceed its share of the capacity.
      std::fill(dense.begin(), dense.end(), T{});
      for (Index row = rows / 2; row < rows / 2 + rows / 20; ++row) touch(row);
      for (const Index room : {rows / 20, rows / 30}) {
        expect_same_compact(memory_, dense, width, room);
      }
    }
  });
}

TEST_F(SameBits, GatherAndScatter) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 6, 40}) {
      const Index rows = 500'000 / width / static_cast<Index>(sizeof(T));
      const std::vector<T> from = random_values<T>(random, rows * width);
      const std::vector<Index> taken = distinct_rows(random, rows, rows * 3 / 4);
      const Index columns = (width + 1) / 2;
      std::vector<T> slice(taken.size() * static_cast<std::size_t>(columns));
      gather_rows(context_, matrix_of(from, width), taken, width - columns,
                  matrix_of(slice, columns));
      std::vector<T> spread(from.size());
      scatter_rows(context_, matrix_of(std::as_const(slice), columns), taken, 0,
                   matrix_of(spread, width));
      for_each_team(memory_, [&](const Context& context) {
        std::vector<T> out(slice.size());
        gather_rows(context, matrix_of(from, width), taken, width - columns,
                    matrix_of(out, columns));
        EXPECT_EQ(bits_of(out), bits_of(slice));
        std::vector<T> back(from.size());
        scatter_rows(context, matrix_of(std::as_const(slice), columns), taken, 0,
                     matrix_of(back, width));
        EXPECT_EQ(bits_of(back), bits_of(spread));
      });
    }
  });
}

TEST_F(SameBits, Coalesce) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 7, 40}) {
      const Index count = 300'000 / width / static_cast<Index>(sizeof(T));
      // With 2 rows, the terms of one row span more than one thread's part.
      for (const Index rows : {count / 3, Index{2}}) {
        std::vector<Index> indices(static_cast<std::size_t>(count));
        for (Index& index : indices) index = random.below(rows);
        const std::vector<T> values = random_values<T>(random, count * width);
        const auto coalesced = [&](const Context& context) {
          CoalesceWorkspace workspace(context);
          std::pair<std::vector<Index>, std::vector<T>> out(indices, values);
          Index found = -1;
          coalesce(context, {indices, matrix_of(values, width)}, {9, 9 + rows}, out.first,
                   matrix_of(out.second, width), Count(&found), workspace);
          out.first.resize(static_cast<std::size_t>(found));
          out.second.resize(static_cast<std::size_t>(found * width));
          return out;
        };
        const auto expected = coalesced(context_);
        for_each_team(memory_, [&](const Context& context) {
          const auto out = coalesced(context);
          EXPECT_EQ(out.first, expected.first);
          EXPECT_EQ(bits_of(out.second), bits_of(expected.second));
        });
      }
    }
  });
}

TEST_F(SameBits, Aggregate) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) {
    for (const Index width : {1, 33}) {
      const Index rows = 600'000 / width / static_cast<Index>(sizeof(T));
      std::vector<std::vector<Index>> indices;
      std::vector<std::vector<T>> values;
      for (const Index count : {rows / 4, rows / 3, Index{0}, rows / 2, rows}) {
        indices.push_back(distinct_rows(random, rows, count));
        values.push_back(random_values<T>(random, count * width));
      }
      std::vector<RowSparse> parts;
      for (std::size_t part = 0; part < indices.size(); ++part) {
        parts.push_back({indices[part], matrix_of(std::as_const(values[part]), width)});
      }
      const std::vector<Index>& united = indices.back();
      const double scale = std::is_integral_v<T> ? 1 : 1.0 / 3;
      const auto summed = [&](const Context& context) {
        AggregateWorkspace workspace(context);
        std::vector<T> out(united.size() * static_cast<std::size_t>(width));
        aggregate(context, united, parts, scale, matrix_of(out, width), workspace);
        return out;
      };
      const std::vector<T> expected = summed(context_);
      for_each_team(memory_, [&](const Context& context) {
        EXPECT_EQ(bits_of(summed(context)), bits_of(expected));
      });
    }
  });
}

TEST_F(SameBits, EveryThreadFindsAnIndexOutsideTheUnion) {
  constexpr Index kRows = 100'000;
  std::vector<Index> united;
  for (Index i = 0; i < kRows; ++i) united.push_back(2 * i + 10);
  std::vector<float> out(united.size());
  for_each_team(memory_, [&](const Context& context) {
    AggregateWorkspace workspace(context);
    const auto expect_refused = [&](const std::vector<Index>& indices) {
      const std::vector<float> values(indices.size(), 1);
      const std::vector<RowSparse> parts{{indices, matrix_of(values, 1)}};
      EXPECT_THROW(aggregate(context, united, parts, 1, matrix_of(out, 1), workspace),
                   ContractError)
          << indices[0];
    };
    for (const Index index : {Index{0}, Index{9}, Index{11}, kRows + 11, 2 * kRows + 7,
                              2 * kRows + 9, 2 * kRows + 10, Index{1} << 40}) {
      expect_refused({index});
    }
    // Between the rows of one thread and the rows of the next.
    for (int part = 1; part < thread_count(context); ++part) {
      expect_refused({2 * EvenRanges(kRows, thread_count(context)).range(part).begin + 9});
    }
    // Indices that are not coalesced.
    expect_refused(std::vector<Index>(5000, 10));
    expect_refused(std::vector<Index>(5000, 2 * kRows + 8));
    expect_refused({12, 10});
  });
}

TEST_F(SameBits, BlocksOfAnyShapeHaveTheSamePositions) {
  // Rows are close together or far apart, so that the ranges into which a block is divided are
  // crowded or empty.
  Random random(testing::seed());
  for (int round = 0; round < 20; ++round) {
    std::vector<Index> united;
    Index next = random.below(1000);
    while (united.size() < 6000) {
      for (Index run = random.below(3000); run >= 0; --run) united.push_back(next += 1);
      next += Index{1} << random.below(40);
    }
    std::vector<Index> indices;
    for (const Index index : united) {
      if (random.below(3) == 0) indices.push_back(index);
    }
    const std::vector<std::int64_t> ones(indices.size(), 1);
    const std::vector<RowSparse> parts{{united, matrix_of(std::as_const(united), 1)},
                                       {indices, matrix_of(ones, 1)}};
    AggregateWorkspace workspace(context_);
    std::vector<std::int64_t> out(united.size());
    aggregate(context_, united, parts, 1, matrix_of(out, 1), workspace);
    auto expected = united;
    for (Index& sum : expected) {
      if (std::binary_search(indices.begin(), indices.end(), sum)) sum += 1;
    }
    ASSERT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace sparsesync
