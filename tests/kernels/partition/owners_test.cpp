// ctest: DEVICES RACES
// Owners: each row belongs to one of the workers that touched it, and the workers' traffic is even.
// Positions and orders match a brute-force search.
#include "kernels/partition/owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "kernels/base/threads.h"
#include "kernels/partition/owner_batches.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

using Owners = OperationTest;
using FindPlaces = OperationTest;
using OrderByOwner = OperationTest;
using RowsOfOwner = OperationTest;

/// Sets of rows, their union, and the positions of each set's rows in it.
struct Touched {
  std::vector<std::vector<Index>> sets;
  std::vector<Index> united;
  std::vector<std::vector<Index>> places;

  explicit Touched(std::vector<std::vector<Index>> rows) : sets(std::move(rows)) {
    for (const std::vector<Index>& set : sets) united.insert(united.end(), set.begin(), set.end());
    std::sort(united.begin(), united.end());
    united.erase(std::unique(united.begin(), united.end()), united.end());
    for (const std::vector<Index>& set : sets) {
      std::vector<Index>& of_set = places.emplace_back();
      for (const Index row : set) {
        of_set.push_back(std::lower_bound(united.begin(), united.end(), row) - united.begin());
      }
    }
  }
  std::vector<std::span<const Index>> views() const { return {places.begin(), places.end()}; }

  std::vector<std::int32_t> owners(const Context& context) const {
    OwnersWorkspace workspace(context);
    std::vector<std::int32_t> chosen(united.size(), -1);
    choose_owners(context, united, views(), chosen, workspace);
    return chosen;
  }
};

/// Draws sets in which many workers touch the rows with low numbers.
std::vector<std::vector<Index>> skewed_sets(Random& random, int workers, Index rows, Index draws) {
  std::vector<std::vector<Index>> sets;
  for (int worker = 0; worker < workers; ++worker) {
    std::vector<Index>& set = sets.emplace_back();
    const Index of_worker = draws + random.below(draws / 10 + 1);
    for (Index i = 0; i < of_worker; ++i) {
      const double uniform = random.uniform();
      set.push_back(std::min(
          rows - 1, static_cast<Index>(static_cast<double>(rows) * uniform * uniform * uniform)));
    }
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
  }
  return sets;
}

TEST(OwnerBatches, are_equal_at_first_and_later_halved) {
  const auto sizes_of = [](Index rows) {
    std::vector<Index> sizes;
    Index end = 0;
    sparsesync::detail::OwnerBatches batches(rows);
    for (auto batch = batches.next(); batch.size > 0; batch = batches.next()) {
      EXPECT_EQ(batch.begin, end);
      end += batch.size;
      sizes.push_back(batch.size);
    }
    EXPECT_EQ(end, rows);
    return sizes;
  };
  EXPECT_EQ(sizes_of(0), (std::vector<Index>{}));
  EXPECT_EQ(sizes_of(16), (std::vector<Index>{16}));
  EXPECT_EQ(sizes_of(40), (std::vector<Index>{16, 16, 8}));
  std::vector<Index> of_many(15, 100);
  of_many.insert(of_many.end(), {50, 25, 13, 12});
  EXPECT_EQ(sizes_of(1600), of_many);
}

TEST_F(Owners, each_row_belongs_to_a_worker_that_touched_it) {
  Random random(seed());
  for (const int workers : {1, 2, 3, 5, 16, 100}) {
    for (const Index rows : {1, 7, 300, 20'000}) {
      SCOPED_TRACE(::testing::Message() << workers << " workers, " << rows << " rows");
      const Touched touched(skewed_sets(random, workers, rows, 1 + rows / 10));
      const std::vector<std::int32_t> owners = touched.owners(context_);
      for (std::size_t place = 0; place < owners.size(); ++place) {
        ASSERT_GE(owners[place], 0);
        ASSERT_LT(owners[place], workers);
        const std::vector<Index>& set = touched.sets[static_cast<std::size_t>(owners[place])];
        EXPECT_TRUE(std::binary_search(set.begin(), set.end(), touched.united[place])) << place;
      }
    }
  }
}

TEST_F(Owners, workers_send_and_receive_nearly_the_same_amount) {
  Random random(seed());
  for (const int workers : {3, 4, 8, 16, 64}) {
    const Touched touched(skewed_sets(random, workers, 60'000, 3'000));
    const std::vector<std::int32_t> owners = touched.owners(context_);
    std::vector<double> sent;
    std::vector<double> received(static_cast<std::size_t>(workers),
                                 static_cast<double>(touched.united.size()));
    std::vector<int> touchers(owners.size());
    for (const std::vector<Index>& places : touched.places) {
      sent.push_back(static_cast<double>(places.size()));
      for (const Index place : places) ++touchers[static_cast<std::size_t>(place)];
    }
    for (std::size_t place = 0; place < owners.size(); ++place) {
      const auto owner = static_cast<std::size_t>(owners[place]);
      sent[owner] += workers - 2;
      received[owner] += touchers[place] - 2;
    }
    // Both means are equal, because every row that is sent is also received.
    const double mean = std::accumulate(sent.begin(), sent.end(), 0.0) / workers;
    EXPECT_NEAR(std::accumulate(received.begin(), received.end(), 0.0) / workers, mean, 1e-6);
    EXPECT_LE(*std::max_element(sent.begin(), sent.end()), 1.03 * mean) << workers;
    EXPECT_LE(*std::max_element(received.begin(), received.end()), 1.03 * mean) << workers;
  }
}

TEST_F(Owners, threads_and_devices_do_not_change_the_choice) {
  Random random(seed());
  const Touched touched(skewed_sets(random, 8, 1'000'000, 200'000));
  HostMemory memory;
  const std::vector<std::int32_t> alone = touched.owners(Context(memory));
  Threads threads(3);
  EXPECT_EQ(touched.owners(Context(memory, threads)), alone);
  EXPECT_EQ(touched.owners(context_), alone);
}

TEST_F(Owners, the_choice_is_that_of_the_cpu) {
  HostMemory memory;
  Random random(seed());
  for (const int workers : {1, 2, 3, 31, 33, 63, 64, 65, 200, 1'000, 1'024, 1'025, 2'000}) {
    for (const Index rows : {1, 2, 17, 33, 300, 1'025, 5'000}) {
      const Touched touched(
          skewed_sets(random, workers, rows, 1 + rows / (workers > 100 ? 50 : 5)));
      EXPECT_EQ(touched.owners(context_), touched.owners(Context(memory)))
          << workers << " workers, " << rows << " rows";
    }
  }
}

TEST_F(Owners, the_choice_is_that_of_the_cpu_for_uneven_loads) {
  HostMemory memory;
  Random random(seed());
  const auto some = [&](Index rows, Index count) { return distinct_rows(random, rows, count); };
  for (const Index rows : {500, 70'000, 140'000}) {
    const std::vector<std::vector<std::vector<Index>>> inputs{
        {some(rows, rows), some(rows, rows)},
        {some(rows, rows), some(rows, rows), some(rows, rows)},
        {some(rows, rows), {}, some(rows, rows / 2), some(rows, 20), {0}, some(rows, rows)},
        {some(rows, rows / 9), some(rows, rows / 9), some(rows, rows / 9), some(rows, rows / 9)},
        {some(rows, rows), {1}, {2}, {rows - 1}, {}},
    };
    for (const std::vector<std::vector<Index>>& sets : inputs) {
      const Touched touched(sets);
      EXPECT_EQ(touched.owners(context_), touched.owners(Context(memory)))
          << sets.size() << " workers, " << rows << " rows";
    }
  }
}

TEST_F(Owners, rows_that_all_workers_touched_are_spread) {
  for (const int workers : {2, 5}) {
    std::vector<Index> all(1000);
    std::iota(all.begin(), all.end(), Index{0});
    const Touched touched({static_cast<std::size_t>(workers), all});
    std::map<std::int32_t, int> owned;
    for (const std::int32_t owner : touched.owners(context_)) ++owned[owner];
    for (const auto& [owner, rows] : owned) EXPECT_NEAR(rows, 1000.0 / workers, 25) << owner;
  }
}

TEST_F(Owners, no_touched_rows_have_no_owners) {
  EXPECT_TRUE(Touched({3, std::vector<Index>{}}).owners(context_).empty());
}

/// The output of find_places().
struct Found {
  std::vector<Index> places;
  std::vector<Index> count;

  Found(const Context& context, const std::vector<Index>& set, const std::vector<Index>& rows)
      : places(rows.size(), -1), count(1, -1) {
    find_places(context, set, rows, places, Count(count.data()));
  }
};

TEST_F(FindPlaces, finds_all_rows_or_reports_the_first_missing_one) {
  const std::vector<Index> set{2, 3, 5, 8, Index{1} << 40};
  const auto find = [&](const std::vector<Index>& rows) {
    return Found(context_, set, rows).count[0];
  };
  EXPECT_EQ(find({}), 0);
  EXPECT_EQ(find({2, 5, Index{1} << 40}), 3);
  EXPECT_EQ(Found(context_, set, {2, 5, Index{1} << 40}).places, (std::vector<Index>{0, 2, 4}));
  EXPECT_EQ(find({2, 4, 5}), 1);
  EXPECT_EQ(find({1}), 0);
  EXPECT_EQ(find({8, (Index{1} << 40) + 1}), 1);
  EXPECT_EQ(Found(context_, {}, {3, 4}).count[0], 0);
}

TEST_F(FindPlaces, finds_rows_among_many) {
  Random random(seed());
  for (const Index size : {1, 31, 33, 1'023, 1'024, 1'025, 4'097, 60'000}) {
    const std::vector<Index> set = distinct_rows(random, 3 * size, size);
    for (const Index count : {Index{1}, ceil_div<Index>(size, 7), size}) {
      std::vector<Index> rows;
      std::vector<Index> expected = distinct_rows(random, size, count);
      for (const Index place : expected) rows.push_back(set[static_cast<std::size_t>(place)]);
      const Found all(context_, set, rows);
      EXPECT_EQ(all.count[0], count);
      EXPECT_EQ(all.places, expected);
      // Remove some rows from the set.
      for (int without = 0; without < 3; ++without) {
        const auto missing = static_cast<std::size_t>(random.below(count));
        std::vector<Index> fewer = set;
        fewer.erase(fewer.begin() + expected[missing]);
        if (missing + 5 < expected.size()) fewer.erase(fewer.begin() + expected[missing + 5] - 1);
        const Found some(context_, fewer, rows);
        EXPECT_EQ(some.count[0], static_cast<Index>(missing));
        EXPECT_TRUE(std::equal(expected.begin(),
                               expected.begin() + static_cast<std::ptrdiff_t>(missing),
                               some.places.begin()));
      }
    }
  }
}

TEST_F(OrderByOwner, is_stable_and_counts) {
  Random random(seed());
  for (const std::size_t groups : std::array<std::size_t, 5>{1, 2, 7, 300, 40'000}) {
    for (const Index rows : {0, 1, 2, 500, 3'000, 50'000}) {
      std::vector<std::int32_t> owners;
      for (Index i = 0; i < rows; ++i) {
        owners.push_back(static_cast<std::int32_t>(random.below(static_cast<Index>(groups))));
      }
      const std::vector<Index> places = distinct_rows(random, rows, ceil_div<Index>(rows, 2));
      std::vector<Index> order(places.size());
      std::vector<Index> begin(groups + 1, -1);
      order_by_owner(context_, owners, places, order, begin);
      const auto owner = [&](Index i) {
        return owners[static_cast<std::size_t>(places[static_cast<std::size_t>(i)])];
      };
      std::vector<Index> expected(places.size());
      std::iota(expected.begin(), expected.end(), Index{0});
      std::stable_sort(expected.begin(), expected.end(),
                       [&](Index a, Index b) { return owner(a) < owner(b); });
      ASSERT_EQ(order, expected);
      std::vector<Index> expected_begin(groups + 1);
      for (const Index place : places) {
        ++expected_begin[static_cast<std::size_t>(owners[static_cast<std::size_t>(place)]) + 1];
      }
      std::partial_sum(expected_begin.begin(), expected_begin.end(), expected_begin.begin());
      ASSERT_EQ(begin, expected_begin);
    }
  }
}

TEST_F(RowsOfOwner, keeps_the_order_of_rows) {
  const std::vector<std::int32_t> owners{1, 0, 1, 1, 2};
  const std::vector<Index> rows{10, 20, 40, 50};
  const std::vector<Index> places{0, 1, 3, 4};
  std::vector<Index> out(4);
  std::vector<Index> count(1, -1);
  const auto of = [&](std::int32_t owner) {
    rows_of_owner(context_, owners, rows, places, owner, out, Count(count.data()));
    return std::vector<Index>(out.begin(), out.begin() + count[0]);
  };
  EXPECT_EQ(of(1), (std::vector<Index>{10, 40}));
  EXPECT_EQ(of(2), (std::vector<Index>{50}));
  EXPECT_EQ(of(3), (std::vector<Index>{}));
}

TEST_F(RowsOfOwner, finds_many_rows) {
  Random random(seed());
  for (const Index size : {0, 1, 32, 255, 2'047, 2'048, 2'049, 50'000}) {
    std::vector<std::int32_t> owners;
    for (Index i = 0; i < 2 * size; ++i) {
      owners.push_back(static_cast<std::int32_t>(random.below(3)));
    }
    const std::vector<Index> places = distinct_rows(random, 2 * size, size);
    const std::vector<Index> rows = distinct_rows(random, 9 * size, size);
    std::vector<Index> expected;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (owners[static_cast<std::size_t>(places[i])] == 1) expected.push_back(rows[i]);
    }
    std::vector<Index> out(rows.size());
    std::vector<Index> count(1, -1);
    rows_of_owner(context_, owners, rows, places, 1, out, Count(count.data()));
    ASSERT_EQ(count[0], static_cast<Index>(expected.size()));
    out.resize(expected.size());
    EXPECT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace sparsesync::testing
