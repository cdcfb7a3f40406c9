// ctest: DEVICES
// Index codes: a suite that every code passes, including untrusted bytes, and the choice of a code.
#include "kernels/indices/index_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/kernels/index_bytes.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

class IndexCodes : public OperationTest, public ::testing::WithParamInterface<IndexCode> {
 protected:
  /// Returns whether the encoded size is small enough for a test. A bitmap's size depends on the
  /// range, whatever its contents.
  static bool has_room(Index universe) {
    return encoded_bytes(GetParam(), universe, 1) <= Index{1} << 15;
  }
  void expect_round_trip(IndexRange range, const std::vector<Index>& indices) const {
    const std::vector<std::byte> bytes = encoded(context_, GetParam(), range, indices);
    ASSERT_EQ(decoded(context_, GetParam(), range, bytes, static_cast<Index>(indices.size())),
              indices)
        << "range [" << range.begin << ", " << range.end << ")";
  }
};

TEST_P(IndexCodes, RoundTripEverySmallSet) {
  for (Index universe = 1; universe <= 10; ++universe) {
    for (unsigned set = 0; set < (1U << static_cast<unsigned>(universe)); ++set) {
      std::vector<Index> indices;
      for (Index i = 0; i < universe; ++i) {
        if ((set >> static_cast<unsigned>(i) & 1U) != 0) indices.push_back(100 + i);
      }
      expect_round_trip({100, 100 + universe}, indices);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(IndexCodes, RoundTripEveryCountInEverySmallUniverse) {
  Random random(testing::seed());
  // Each round trip needs a launch and a wait, so a GPU runs only a sample.
  const Index step = testing::on_cuda() ? 17 : 1;
  for (Index universe = 1; universe <= 200; universe += step) {
    for (Index count = 0; count <= universe; ++count) {
      expect_round_trip({0, universe}, distinct_rows(random, universe, count));
      if (HasFatalFailure()) return;
    }
    // Each single index, and all indices but one.
    for (Index only = 0; only < universe; ++only) {
      expect_round_trip({0, universe}, {only});
      std::vector<Index> others;
      for (Index i = 0; i < universe; ++i) {
        if (i != only) others.push_back(i);
      }
      expect_round_trip({0, universe}, others);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(IndexCodes, RoundTripRandomSetsOfEveryDensity) {
  Random random(testing::seed());
  for (const int k : {10, 16, 20, 24, 31, 32, 33, 40, 53, 60, 61}) {
    for (const Index universe :
         {(Index{1} << k) - 1, Index{1} << k, (Index{1} << k) + random.below(1000)}) {
      if (!has_room(universe)) continue;
      for (const Index begin : {Index{0}, Index{1}, Index{12'345'678'901}, Index{1} << 61}) {
        for (const Index count : {Index{0}, Index{1}, Index{2}, Index{1000}}) {
          expect_round_trip({begin, begin + universe}, [&] {
            std::vector<Index> indices = distinct_rows(random, universe, count);
            for (Index& index : indices) index += begin;
            return indices;
          }());
          if (HasFatalFailure()) return;
        }
        expect_round_trip({begin, begin + universe}, {begin});
        expect_round_trip({begin, begin + universe}, {begin + universe - 1});
        expect_round_trip({begin, begin + universe}, {begin, begin + universe - 1});
        if (HasFatalFailure()) return;
      }
    }
  }
  // Dense sets and the complete set.
  for (const double density : {0.5, 0.9, 1.0}) {
    const Index universe = 10'000;
    std::vector<Index> indices = distinct_rows(
        random, universe, static_cast<Index>(density * static_cast<double>(universe)));
    for (Index& index : indices) index += 77;
    expect_round_trip({77, 77 + universe}, indices);
  }
  // Sets crowded at either end.
  for (const Index universe : {Index{1} << 18, Index{1} << 40}) {
    if (!has_room(universe)) continue;
    std::vector<Index> low;
    std::vector<Index> high;
    for (Index i = 0; i < 1000; ++i) {
      low.push_back(i);
      high.push_back(universe - 1000 + i);
    }
    expect_round_trip({0, universe}, low);
    expect_round_trip({0, universe}, high);
  }
}

TEST_P(IndexCodes, RoundTripNumbersOfUpTo62Bits) {
  if (!has_room(Index{1} << 59)) GTEST_SKIP() << "a code of 2^59 bits does not fit into memory";
  // With 59 or more low bits, a number may span nine bytes.
  Random random(testing::seed());
  for (const Index universe :
       {Index{1} << 59, Index{1} << 60, Index{3} << 60, (Index{1} << 62) - 1, Index{1} << 62}) {
    for (Index count = 1; count <= 20; ++count) {
      for (int round = 0; round < 20; ++round) {
        expect_round_trip({9, 9 + universe}, [&] {
          std::vector<Index> indices = distinct_rows(random, universe, count);
          for (Index& index : indices) index += 9;
          return indices;
        }());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(IndexCodes, RejectEveryOtherSize) {
  Random random(testing::seed());
  for (const Index universe : {Index{100}, Index{5000}, Index{1} << 33}) {
    if (!has_room(universe)) continue;
    for (const Index count : {1, 2, 17, 100}) {
      const IndexRange range{0, universe};
      std::vector<std::byte> bytes =
          encoded(context_, GetParam(), range, distinct_rows(random, universe, count));
      for (std::size_t size = 0; size < bytes.size(); ++size) {
        EXPECT_THROW(decoded(context_, GetParam(), range, std::span(bytes).first(size), count),
                     CorruptDataError)
            << size << " of " << bytes.size() << " bytes";
      }
      for (int more = 0; more < 9; ++more) {
        bytes.push_back(std::byte{0});
        EXPECT_THROW(decoded(context_, GetParam(), range, bytes, count), CorruptDataError);
      }
    }
  }
}

TEST_P(IndexCodes, RejectAnotherCount) {
  Random random(testing::seed());
  for (const Index universe : {Index{100}, Index{5000}, Index{1} << 33}) {
    if (!has_room(universe)) continue;
    const IndexRange range{0, universe};
    const Index count = 40;
    const std::vector<std::byte> bytes =
        encoded(context_, GetParam(), range, distinct_rows(random, universe, count));
    for (Index other = 0; other <= 100; ++other) {
      if (other == count) continue;
      EXPECT_THROW(decoded(context_, GetParam(), range, bytes, other), CorruptDataError)
          << other << " of " << universe;
    }
  }
}

TEST_P(IndexCodes, RejectMoreIndicesThanTheUniverseHas) {
  // 9 indices below 8 are impossible, even if the size is right for them.
  for (const Index count : {9, 10, 1000}) {
    for (Index size = 0; size < 100; ++size) {
      const std::vector<std::byte> bytes(static_cast<std::size_t>(size));
      EXPECT_THROW(decoded(context_, GetParam(), {0, 8}, bytes, count), CorruptDataError);
    }
  }
  EXPECT_THROW(decoded(context_, GetParam(), {5, 5}, {}, 1), CorruptDataError);
}

TEST_P(IndexCodes, EncodeAnEmptySetInNoBytes) {
  for (const Index universe : {Index{0}, Index{1}, Index{64}, Index{1} << 61}) {
    EXPECT_EQ(encoded_bytes(GetParam(), universe, 0), 0);
    encode(context_, GetParam(), {7, 7 + universe}, {}, {});
    decode(context_, GetParam(), {7, 7 + universe}, {}, {});
    const std::vector<std::byte> one(1);
    EXPECT_THROW(decode(context_, GetParam(), {7, 7 + universe}, one, {}), CorruptDataError);
  }
}

TEST_P(IndexCodes, DecodeToIncreasingIndicesInRangeOrThrow) {
  Random random(testing::seed());
  int accepted = 0;
  int refused = 0;
  const int rounds = testing::on_cuda() ? 5'000 : 20'000;
  for (int round = 0; round < rounds; ++round) {
    const Index universe =
        1 + random.below(round % 3 == 0 ? 100 : Index{1} << (1 + random.below(61)));
    if (!has_room(universe)) continue;
    const Index count = 1 + random.below(std::min<Index>(universe, 40));
    const IndexRange range{1000, 1000 + universe};
    std::vector<Index> indices = distinct_rows(random, universe, count);
    for (Index& index : indices) index += range.begin;
    std::vector<std::byte> bytes = encoded(context_, GetParam(), range, indices);
    if (round % 5 == 0) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    } else if (round % 5 == 1) {
      // Swap two bits, so that the number of set bits stays the same.
      const auto bits = static_cast<Index>(bytes.size()) * 8;
      const auto one = static_cast<std::size_t>(random.below(bits));
      const auto other = static_cast<std::size_t>(random.below(bits));
      const auto is_set = [&](std::size_t bit) {
        return (std::to_integer<unsigned>(bytes[bit / 8]) >> (bit % 8) & 1U) != 0;
      };
      if (is_set(one) != is_set(other)) {
        for (const std::size_t bit : {one, other}) {
          bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
        }
      }
    } else {
      for (Index flips = 1 + random.below(3); flips > 0; --flips) {
        const auto bit =
            static_cast<std::size_t>(random.below(static_cast<Index>(bytes.size()) * 8));
        bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      }
    }
    try {
      const std::vector<Index> got = decoded(context_, GetParam(), range, bytes, count);
      ++accepted;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(got[i] >= range.begin && got[i] < range.end)
            << got[i] << " is outside of " << universe;
        ASSERT_TRUE(i == 0 || got[i - 1] < got[i]) << got[i - 1] << " precedes " << got[i];
      }
    } catch (const CorruptDataError&) {
      ++refused;
    }
  }
  // Both outcomes occurred.
  EXPECT_GT(accepted, rounds / 20);
  EXPECT_GT(refused, rounds / 20);
}

TEST_P(IndexCodes, RequireAnOutputOfTheExactSize) {
  const std::vector<Index> indices{1, 2};
  std::vector<std::byte> out(static_cast<std::size_t>(encoded_bytes(GetParam(), 100, 2)) + 1);
  EXPECT_THROW(encode(context_, GetParam(), {0, 100}, indices, out), ContractError);
}

INSTANTIATE_TEST_SUITE_P(All, IndexCodes, ::testing::ValuesIn(kIndexCodes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(CheapestCode, HasTheSmallestSize) {
  Random random(testing::seed());
  std::map<IndexCode, int> taken;
  const auto expect = [&](Index universe, Index count) {
    const IndexCode cheapest = cheapest_code(universe, count);
    for (const IndexCode code : kIndexCodes) {
      const Index difference =
          encoded_bytes(code, universe, count) - encoded_bytes(cheapest, universe, count);
      ASSERT_TRUE(code < cheapest ? difference > 0 : difference >= 0)
          << count << " of " << universe << ": " << name_of(cheapest) << " or " << name_of(code);
    }
    ++taken[cheapest];
  };
  // Each case needs a launch and a wait, so a GPU runs only a sample.
  const Index step = testing::on_cuda() ? 17 : 1;
  for (Index universe = 1; universe <= 200; universe += step) {
    for (Index count = 0; count <= universe; ++count) expect(universe, count);
  }
  for (int round = 0; round < 1000; ++round) {
    const Index universe = 1 + random.below(Index{1} << (1 + random.below(61)));
    expect(universe, random.below(std::min<Index>(universe, 1 << 20) + 1));
  }
  // One of 2^32 indices takes 4 bytes in COO, and one byte more in Elias-Fano.
  EXPECT_EQ(cheapest_code(Index{1} << 32, 1), IndexCode::coo);
  EXPECT_EQ(cheapest_code(793'471, 1186), IndexCode::elias_fano);
  // The bitmap is cheaper from a density of about a quarter.
  EXPECT_EQ(cheapest_code(10'000, 2'300), IndexCode::elias_fano);
  EXPECT_EQ(cheapest_code(10'000, 2'700), IndexCode::bitmap);
  EXPECT_EQ(cheapest_code(10'000, 9'999), IndexCode::bitmap);
  EXPECT_EQ(cheapest_code(10'000, 10'000), IndexCode::all);
  EXPECT_EQ(cheapest_code(0, 0), IndexCode::coo);
  EXPECT_GT(taken[IndexCode::coo], 0);
  EXPECT_GT(taken[IndexCode::elias_fano], 1000);
  EXPECT_GT(taken[IndexCode::bitmap], 1000);
}

TEST(IndexCodeNames, MatchTheTables) {
  EXPECT_EQ(name_of(IndexCode::coo), "coo");
  EXPECT_EQ(name_of(IndexCode::elias_fano), "elias_fano");
  EXPECT_EQ(name_of(IndexCode::bitmap), "bitmap");
  EXPECT_EQ(name_of(IndexCode::all), "all");
}

}  // namespace
}  // namespace sparsesync
