// Owners: each row has one of its touchers, what workers send and receive is even, and the places
// and orders are those that brute force finds.
#include "kernels/owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/memory.h"
#include "kernels/threads.h"
#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

/// Sets of rows, their union, and where each set's rows are in it.
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

/// Rows of which low numbers are touched by many.
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

TEST(Owners, each_row_has_one_of_its_touchers) {
  HostMemory memory;
  Random random(seed());
  for (const int workers : {1, 2, 3, 5, 16, 100}) {
    for (const Index rows : {1, 7, 300, 20'000}) {
      SCOPED_TRACE(::testing::Message() << workers << " workers, " << rows << " rows");
      const Touched touched(skewed_sets(random, workers, rows, 1 + rows / 10));
      const std::vector<std::int32_t> owners = touched.owners(Context(memory));
      for (std::size_t place = 0; place < owners.size(); ++place) {
        ASSERT_GE(owners[place], 0);
        ASSERT_LT(owners[place], workers);
        const std::vector<Index>& set = touched.sets[static_cast<std::size_t>(owners[place])];
        EXPECT_TRUE(std::binary_search(set.begin(), set.end(), touched.united[place])) << place;
      }
    }
  }
}

TEST(Owners, workers_send_and_receive_nearly_the_same) {
  HostMemory memory;
  Random random(seed());
  for (const int workers : {3, 4, 8, 16, 64}) {
    const Touched touched(skewed_sets(random, workers, 60'000, 3'000));
    const std::vector<std::int32_t> owners = touched.owners(Context(memory));
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
    // Their means are the same: every row sent is received.
    const double mean = std::accumulate(sent.begin(), sent.end(), 0.0) / workers;
    EXPECT_NEAR(std::accumulate(received.begin(), received.end(), 0.0) / workers, mean, 1e-6);
    EXPECT_LE(*std::max_element(sent.begin(), sent.end()), 1.03 * mean) << workers;
    EXPECT_LE(*std::max_element(received.begin(), received.end()), 1.03 * mean) << workers;
  }
}

TEST(Owners, threads_change_no_choice) {
  HostMemory memory;
  Random random(seed());
  const Touched touched(skewed_sets(random, 8, 1'000'000, 200'000));
  const std::vector<std::int32_t> alone = touched.owners(Context(memory));
  Threads threads(3);
  EXPECT_EQ(touched.owners(Context(memory, threads)), alone);
}

TEST(Owners, rows_that_all_touched_are_spread) {
  HostMemory memory;
  for (const int workers : {2, 5}) {
    std::vector<Index> all(1000);
    std::iota(all.begin(), all.end(), Index{0});
    const Touched touched({static_cast<std::size_t>(workers), all});
    std::map<std::int32_t, int> owned;
    for (const std::int32_t owner : touched.owners(Context(memory))) ++owned[owner];
    for (const auto& [owner, rows] : owned) EXPECT_NEAR(rows, 1000.0 / workers, 25) << owner;
  }
}

TEST(Owners, nothing_touched) {
  HostMemory memory;
  EXPECT_TRUE(Touched({3, std::vector<Index>{}}).owners(Context(memory)).empty());
}

TEST(FindPlaces, finds_all_or_names_the_first_that_is_missing) {
  HostMemory memory;
  const Context context(memory);
  const std::vector<Index> set{2, 3, 5, 8, Index{1} << 40};
  const auto find = [&](const std::vector<Index>& rows, std::vector<Index>& places) {
    Index found = -1;
    places.assign(rows.size(), -1);
    find_places(context, set, rows, places, Count(&found));
    return found;
  };
  std::vector<Index> places;
  EXPECT_EQ(find({}, places), 0);
  EXPECT_EQ(find({2, 5, Index{1} << 40}, places), 3);
  EXPECT_EQ(places, (std::vector<Index>{0, 2, 4}));
  EXPECT_EQ(find({2, 4, 5}, places), 1);
  EXPECT_EQ(find({1}, places), 0);
  EXPECT_EQ(find({8, (Index{1} << 40) + 1}, places), 1);
}

TEST(OrderByOwner, is_stable_and_counts) {
  HostMemory memory;
  Random random(seed());
  for (const Index rows : {0, 1, 500}) {
    constexpr std::size_t kGroups = 7;
    std::vector<std::int32_t> owners;
    for (Index i = 0; i < rows; ++i) {
      owners.push_back(static_cast<std::int32_t>(random.below(kGroups)));
    }
    const std::vector<Index> places = distinct_rows(random, rows, rows / 2);
    std::vector<Index> order(places.size());
    std::vector<Index> begin(kGroups + 1);
    order_by_owner(Context(memory), owners, places, order, begin);
    std::vector<Index> expected;
    for (std::size_t group = 0; group < kGroups; ++group) {
      EXPECT_EQ(begin[group], static_cast<Index>(expected.size()));
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (owners[static_cast<std::size_t>(places[i])] == static_cast<std::int32_t>(group)) {
          expected.push_back(static_cast<Index>(i));
        }
      }
    }
    EXPECT_EQ(begin.back(), static_cast<Index>(places.size()));
    EXPECT_EQ(order, expected);
  }
}

TEST(RowsOfOwner, keeps_their_order) {
  HostMemory memory;
  const std::vector<std::int32_t> owners{1, 0, 1, 1, 2};
  const std::vector<Index> rows{10, 20, 40, 50};
  const std::vector<Index> places{0, 1, 3, 4};
  std::vector<Index> out(4);
  Index count = -1;
  const auto of = [&](std::int32_t owner) {
    rows_of_owner(Context(memory), owners, rows, places, owner, out, Count(&count));
    return std::vector<Index>(out.begin(), out.begin() + count);
  };
  EXPECT_EQ(of(1), (std::vector<Index>{10, 40}));
  EXPECT_EQ(of(2), (std::vector<Index>{50}));
  EXPECT_EQ(of(3), (std::vector<Index>{}));
}

}  // namespace
}  // namespace sparsesync::testing
