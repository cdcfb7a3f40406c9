// ctest: DEVICES
// Domains of hash bitmaps: they divide the rows, and positions in them map back to the rows.
#include "kernels/partition/hash_bitmap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/indices/index_code.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

using Domains = OperationTest;

std::vector<Index> domain_of(const Context& context, const HashDomains& domains, Index partition) {
  std::vector<Index> positions(static_cast<std::size_t>(domains.size(partition)));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<Index>(i);
  std::vector<Index> rows(positions.size(), -1);
  rows_in_domain(context, domains, partition, positions, rows);
  return rows;
}

TEST_F(Domains, DivideTheRowsByTheirHash) {
  Random random(testing::seed());
  for (const Index rows : {1, 2, 100, 10'007, 16'384, 70'001}) {
    for (const Index partitions : {1, 2, 7, 64}) {
      const RowHash hash(partitions, random.next());
      HashDomains domains(context_);
      build_domains(context_, hash, rows, domains);
      std::vector<Index> all;
      for (Index partition = 0; partition < partitions; ++partition) {
        const std::vector<Index> domain = domain_of(context_, domains, partition);
        for (std::size_t i = 0; i < domain.size(); ++i) {
          ASSERT_EQ(hash.partition(domain[i]), partition);
          ASSERT_TRUE(i == 0 || domain[i - 1] < domain[i]);
        }
        all.insert(all.end(), domain.begin(), domain.end());
      }
      std::sort(all.begin(), all.end());
      ASSERT_EQ(static_cast<Index>(all.size()), rows);
      for (Index row = 0; row < rows; ++row) ASSERT_EQ(all[static_cast<std::size_t>(row)], row);
    }
  }
}

TEST_F(Domains, PositionsMapBackAndAreContiguousInARange) {
  Random random(testing::seed());
  const Index rows = 50'000;
  const RowHash hash(5, random.next());
  HashDomains domains(context_);
  build_domains(context_, hash, rows, domains);
  const std::vector<Index> edges{0, 12'345, 23'456, rows};
  std::vector<Index> below(5 * edges.size(), -1);
  count_below(context_, domains, edges, below);
  for (Index partition = 0; partition < 5; ++partition) {
    const std::vector<Index> domain = domain_of(context_, domains, partition);
    std::vector<Index> chosen;
    for (const Index place : distinct_rows(random, domains.size(partition), 1000)) {
      chosen.push_back(domain[static_cast<std::size_t>(place)]);
    }
    std::vector<Index> positions(chosen.size());
    positions_in_domain(context_, domains, partition, chosen, positions);
    std::vector<Index> back(chosen.size());
    rows_in_domain(context_, domains, partition, positions, back);
    EXPECT_EQ(back, chosen);
    const std::size_t first = static_cast<std::size_t>(partition) * edges.size();
    const IndexRange range{below[first + 1], below[first + 2]};
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const bool inside = chosen[i] >= edges[1] && chosen[i] < edges[2];
      EXPECT_EQ(positions[i] >= range.begin && positions[i] < range.end, inside);
    }
    EXPECT_EQ(below[first], 0);
    EXPECT_EQ(below[first + 3], domains.size(partition));
    // A row of another partition has no position in this domain.
    const std::vector<Index> stranger = domain_of(context_, domains, (partition + 1) % 5);
    std::vector<Index> one(1);
    EXPECT_THROW(
        positions_in_domain(context_, domains, partition, std::span(stranger).first(1), one),
        CorruptDataError);
    const std::vector<Index> behind{rows};
    EXPECT_THROW(positions_in_domain(context_, domains, partition, behind, one), CorruptDataError);
    const std::vector<Index> falling{domain[7], domain[3]};
    std::vector<Index> two(2);
    EXPECT_THROW(positions_in_domain(context_, domains, partition, falling, two), CorruptDataError);
  }
}

TEST_F(Domains, CanBeEmpty) {
  // One row in many partitions.
  const RowHash hash(7, 3);
  HashDomains domains(context_);
  build_domains(context_, hash, 1, domains);
  const std::vector<Index> edges{0, 1};
  std::vector<Index> below(14, -1);
  count_below(context_, domains, edges, below);
  const std::vector<Index> rows{0};
  std::vector<Index> positions(1);
  for (Index partition = 0; partition < 7; ++partition) {
    const bool has_it = hash.partition(0) == partition;
    EXPECT_EQ(domains.size(partition), has_it ? 1 : 0);
    EXPECT_EQ(below[static_cast<std::size_t>(2 * partition)], 0);
    EXPECT_EQ(below[static_cast<std::size_t>(2 * partition) + 1], has_it ? 1 : 0);
    if (has_it) {
      EXPECT_NO_THROW(positions_in_domain(context_, domains, partition, rows, positions));
    } else {
      EXPECT_THROW(positions_in_domain(context_, domains, partition, rows, positions),
                   CorruptDataError);
    }
  }
  std::vector<Index> short_of_one(13);
  EXPECT_THROW(count_below(context_, domains, edges, short_of_one), ContractError);
}

TEST_F(Domains, BitmapsOfAllPartitionsTakeOneBitPerRow) {
  const Index rows = 100'000;
  for (const Index partitions : {1, 4, 64}) {
    const RowHash hash(partitions, 7);
    HashDomains domains(context_);
    build_domains(context_, hash, rows, domains);
    Index bytes = 0;
    for (Index partition = 0; partition < partitions; ++partition) {
      bytes += encoded_bytes(IndexCode::bitmap, domains.size(partition), 1);
    }
    EXPECT_GE(bytes, rows / 8);
    EXPECT_LE(bytes, rows / 8 + partitions);
  }
}

TEST_F(Domains, TakeFourBytesPerRowAndRespectTheBudget) {
  EXPECT_EQ(domain_entry_bytes(Index{1} << 32), 4);
  EXPECT_EQ(domain_entry_bytes((Index{1} << 32) + 1), 8);
  HashDomains domains(context_);
  const std::int64_t before = memory_.in_use();
  build_domains(context_, RowHash(3, 1), 10'000, domains);
  EXPECT_EQ(memory_.in_use() - before, 40'000);
  testing::TestMemory small(39'999);
  const Context context = device_.context(small);
  HashDomains refused(context);
  EXPECT_THROW(build_domains(context, RowHash(3, 1), 10'000, refused), BudgetError);
  EXPECT_THROW(build_domains(context, RowHash(3, 1), Index{1} << 33, refused), BudgetError);
  EXPECT_EQ(small.in_use(), 0);
}

}  // namespace
}  // namespace sparsesync
