// ctest: DEVICES
// Hierarchical hashing: no row is lost whatever the timing of threads, and every run has the same
// result. A model shows the rows that the paper's write-then-read-back loses.
#include "kernels/partition/hierarchical_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/base/threads.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

class HierarchicalHash : public OperationTest {
 protected:
  struct Result {
    std::vector<Index> rows;
    std::vector<Index> sources;
    std::vector<Index> begin;
    Index repeats = 0;
    friend bool operator==(const Result&, const Result&) = default;
  };

  static Result partitioned(const Context& context, const RowHash& hash,
                            const std::vector<Index>& rows, HashMemory& memory) {
    Result result;
    result.rows.assign(rows.size(), -1);
    result.sources.assign(rows.size(), -1);
    result.begin.assign(static_cast<std::size_t>(hash.partitions()) + 1, -1);
    result.repeats =
        partition_by_hash(context, hash, rows, result.rows, result.sources, result.begin, memory);
    return result;
  }

  /// Computes the result by the definition: each partition's rows, in input order.
  static Result expected(const RowHash& hash, const std::vector<Index>& rows) {
    Result result;
    result.begin.push_back(0);
    for (Index partition = 0; partition < hash.partitions(); ++partition) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (hash.partition(rows[i]) != partition) continue;
        result.rows.push_back(rows[i]);
        result.sources.push_back(static_cast<Index>(i));
      }
      result.begin.push_back(static_cast<Index>(result.rows.size()));
    }
    return result;
  }

  /// Returns `count` rows that h0 maps to one partition.
  static std::vector<Index> rows_of_one_partition(const RowHash& hash, Index count) {
    std::vector<Index> rows;
    for (Index row = 0; static_cast<Index>(rows.size()) < count; ++row) {
      if (hash.partition(row) == 1) rows.push_back(row);
    }
    return rows;
  }
};

TEST_F(HierarchicalHash, DividesRowsByTheFirstHash) {
  Random random(testing::seed());
  HashMemory memory(context_);
  for (const Index partitions : {1, 2, 3, 8, 64}) {
    for (const Index universe : {Index{1}, Index{100}, Index{1} << 20, Index{1} << 40}) {
      const RowHash hash(partitions, random.next());
      for (const Index count : {Index{0}, Index{1}, Index{50}, Index{5000}}) {
        const std::vector<Index> rows = distinct_rows(random, universe, std::min(universe, count));
        Result result = partitioned(context_, hash, rows, memory);
        result.repeats = 0;
        ASSERT_EQ(result, expected(hash, rows))
            << count << " of " << universe << " rows, " << partitions << " partitions";
      }
    }
  }
}

// Many rows compete for few cells, so that threads collide. A lost, duplicated or misplaced row
// shows in the result.
TEST_F(HierarchicalHash, LosesNothingWhenThreadsCollide) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the CPU implementation uses threads";
  Threads threads(8);
  const Context team(memory_, threads);
  Random random(testing::seed());
  const std::vector<Index> rows = distinct_rows(random, 1'000'000, 40'000);
  const RowHash hash(4, random.next());
  const Result once = expected(hash, rows);
  HashMemory memory(team);
  for (int run = 0; run < 200; ++run) {
    Result result = partitioned(team, hash, rows, memory);
    result.repeats = 0;
    ASSERT_EQ(result, once) << "run " << run;
  }
}

TEST_F(HierarchicalHash, DividesManyRows) {
  Random random(testing::seed());
  HashMemory memory(context_);
  // Sizes grow and shrink, so that memory is sometimes larger than needed.
  for (const Index count : {31, 32, 33, 1025, 40'000, 256, 257, 4097}) {
    for (const Index partitions : {1, 5, 256, 300, 1000}) {
      const RowHash hash(partitions, random.next());
      std::vector<Index> rows = distinct_rows(random, 1'000'000, count);
      // Rows do not have to be sorted.
      for (std::size_t i = rows.size(); i > 1; --i) {
        std::swap(rows[i - 1], rows[static_cast<std::size_t>(random.below(static_cast<Index>(i)))]);
      }
      Result result = partitioned(context_, hash, rows, memory);
      result.repeats = 0;
      ASSERT_EQ(result, expected(hash, rows)) << count << " rows, " << partitions << " partitions";
    }
  }
}

TEST_F(HierarchicalHash, GrowsSerialMemoryIfAllRowsFallIntoOnePartition) {
  Threads threads(4);
  const RowHash hash(16, 5);
  const std::vector<Index> rows = rows_of_one_partition(hash, 20'000);
  for (const Context& context : {context_, Context(memory_, threads)}) {
    HashMemory memory(context);
    const Result result = partitioned(context, hash, rows, memory);
    // 2500 parallel cells and 250 serial cells for 20,000 rows.
    EXPECT_GE(result.repeats, 1);
    EXPECT_GE(memory.serial_cells, 17'500);
    EXPECT_EQ(result.rows, rows);
    EXPECT_EQ(result.begin[1], 0);
    EXPECT_EQ(result.begin[2], 20'000);
    // The memory keeps its size, so the next call needs no repetition.
    EXPECT_EQ(partitioned(context, hash, rows, memory).repeats, 0);
    const std::int64_t before = memory_.allocations();
    EXPECT_EQ(partitioned(context, hash, rows, memory).rows, rows);
    EXPECT_EQ(memory_.allocations(), before);
  }
}

TEST_F(HierarchicalHash, ReportsTheNeededCellsAndLeavesRowsOut) {
  const RowHash hash(4, 9);
  const std::vector<Index> rows = rows_of_one_partition(hash, 100);
  HashMemory memory(context_);
  memory.parallel_cells = 1;
  memory.serial_cells = 10;
  EXPECT_EQ(hash_rows(context_, hash, rows, memory), 99);
  memory.serial_cells = 99;
  EXPECT_EQ(hash_rows(context_, hash, rows, memory), 99);
}

TEST_F(HierarchicalHash, NeedsNoRepetitionForOrdinaryRows) {
  Random random(testing::seed());
  for (int round = 0; round < 20; ++round) {
    const RowHash hash(8, random.next());
    HashMemory memory(context_);
    const std::vector<Index> rows = distinct_rows(random, 1'000'000, 20'000);
    EXPECT_EQ(partitioned(context_, hash, rows, memory).repeats, 0);
  }
}

TEST_F(HierarchicalHash, RespectsTheBudget) {
  testing::TestMemory small(100'000);
  const Context context = device_.context(small);
  HashMemory memory(context);
  Random random(testing::seed());
  const std::vector<Index> rows = distinct_rows(random, 1'000'000, 20'000);
  std::vector<Index> out(rows.size());
  std::vector<Index> begin(9);
  EXPECT_THROW(partition_by_hash(context, RowHash(8, 1), rows, out, out, begin, memory),
               BudgetError);
}

TEST(RowHashes, UseTheFinalizerOfMurmurHash3AndSpreadRows) {
  // Values of the reference implementation of MurmurHash3.
  EXPECT_EQ(murmur_fmix64(0), 0U);
  EXPECT_EQ(murmur_fmix64(1), 0xB456BCFC34C2CB2CU);
  const RowHash hash(8, 3);
  const RowHash other(8, 4);
  std::array<int, 8> counts{};
  int same = 0;
  for (Index row = 0; row < 80'000; ++row) {
    ++counts.at(static_cast<std::size_t>(hash.partition(row)));
    same += hash.partition(row) == other.partition(row) ? 1 : 0;
  }
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_NEAR(same, 10'000, 500) << "another seed gives another hash";
}

// ---- Rows that the paper's method of claiming a cell loses. Two rows want the same cell. The
// model runs their threads step by step, in every possible order of their memory accesses.

/// A thread that claims a cell for one row. A step is one memory access.
class Taker {
 public:
  virtual ~Taker() = default;
  virtual int steps() const = 0;
  virtual void step(int number, Index& cell) = 0;
  /// Returns whether the thread believes that its row is in the cell. If not, it tries another
  /// cell.
  bool took() const { return took_; }

 protected:
  bool took_ = false;
};

/// Reads the cell as free, writes its row, then reads the cell back.
class WriteThenReadBack : public Taker {
 public:
  explicit WriteThenReadBack(Index row) : row_(row) {}
  int steps() const override { return 3; }
  void step(int number, Index& cell) override {
    if (number == 0) free_ = cell == HashMemory::kFree;
    if (number == 1 && free_) cell = row_;
    if (number == 2 && free_) took_ = cell == row_;
  }

 private:
  Index row_;
  bool free_ = false;
};

/// Reads the cell as free, then claims it with one compare-and-swap.
class CompareAndSwap : public Taker {
 public:
  explicit CompareAndSwap(Index row) : row_(row) {}
  int steps() const override { return 2; }
  void step(int number, Index& cell) override {
    if (number == 0) free_ = cell == HashMemory::kFree;
    if (number == 1 && free_ && cell == HashMemory::kFree) {
      cell = row_;
      took_ = true;
    }
  }

 private:
  Index row_;
  bool free_ = false;
};

struct Orders {
  int all = 0;
  int losing = 0;  // orders that lose a row, although its thread believes that it has a cell
};

template <typename Kind>
Orders every_order() {
  Orders orders;
  const int steps = Kind(0).steps();
  // One bit per access selects the thread that makes it.
  for (unsigned order = 0; order < 1U << static_cast<unsigned>(2 * steps); ++order) {
    if (std::popcount(order) != steps) continue;
    Index cell = HashMemory::kFree;
    std::array<Kind, 2> takers{Kind(100), Kind(101)};
    std::array<int, 2> done{};
    for (int at = 0; at < 2 * steps; ++at) {
      const std::size_t who = order >> static_cast<unsigned>(at) & 1U;
      takers.at(who).step(done.at(who)++, cell);
    }
    ++orders.all;
    for (std::size_t who = 0; who < 2; ++who) {
      if (takers.at(who).took() && cell != static_cast<Index>(100 + who)) ++orders.losing;
    }
  }
  return orders;
}

TEST(TakingACell, LosesRowsByReadingBackButNotByCompareAndSwap) {
  const Orders read_back = every_order<WriteThenReadBack>();
  EXPECT_EQ(read_back.all, 20);
  // Both threads read the cell as free. One wrote after the other had read its value back.
  EXPECT_EQ(read_back.losing, 4);
  const Orders swap = every_order<CompareAndSwap>();
  EXPECT_EQ(swap.all, 6);
  EXPECT_EQ(swap.losing, 0);
}

}  // namespace
}  // namespace sparsesync
