// ctest: NEEDS ANALYSIS LIBRARIES sparsesync_analysis
// The bytes of each index code: their number in closed form, the position of each bit, and rejected
// input that is specific to a code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "analysis/compare/reference.h"
#include "kernels/indices/index_code.h"
#include "tests/kernels/index_bytes.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

class CooCode : public OperationTest {};
class EliasFanoCode : public OperationTest {};

TEST_F(CooCode, TakesFourBytesUpToTwoToThe32AndThenEight) {
  constexpr Index kBorder = Index{1} << 32;
  static_assert(coo_index_bytes(1) == 4 && coo_index_bytes(kBorder) == 4 &&
                coo_index_bytes(kBorder + 1) == 8);
  EXPECT_EQ(encoded_bytes(IndexCode::coo, kBorder, 3), 12);
  EXPECT_EQ(encoded_bytes(IndexCode::coo, kBorder + 1, 3), 24);
  for (const Index universe : {kBorder, kBorder + 1}) {
    const std::vector<Index> indices{10, 10 + universe - 1};
    const IndexRange range{10, 10 + universe};
    const std::vector<std::byte> bytes = encoded(context_, IndexCode::coo, range, indices);
    EXPECT_EQ(decoded(context_, IndexCode::coo, range, bytes, 2), indices);
  }
}

TEST_F(CooCode, IsLittleEndianRelativeToTheStartOfTheRange) {
  const std::vector<std::byte> bytes =
      encoded(context_, IndexCode::coo, {1000, 100'000}, {1001, 1000 + 0x010203});
  EXPECT_EQ(bytes,
            (std::vector<std::byte>{std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0},
                                    std::byte{3}, std::byte{2}, std::byte{1}, std::byte{0}}));
}

TEST_F(CooCode, RejectsIndicesOutsideTheRangeOrNotIncreasing) {
  const auto refused = [&](Index universe, const std::vector<std::uint64_t>& stored) {
    std::vector<std::byte> bytes;
    for (const std::uint64_t number : stored) {
      for (Index i = 0; i < coo_index_bytes(universe); ++i) {
        bytes.push_back(static_cast<std::byte>(number >> static_cast<unsigned>(8 * i) & 0xFFU));
      }
    }
    try {
      decoded(context_, IndexCode::coo, {5, 5 + universe}, bytes,
              static_cast<Index>(stored.size()));
      return false;
    } catch (const CorruptDataError&) {
      return true;
    }
  };
  EXPECT_FALSE(refused(100, {0, 99}));
  EXPECT_TRUE(refused(100, {0, 100}));
  EXPECT_TRUE(refused(100, {3, 3}));
  EXPECT_TRUE(refused(100, {4, 3}));
  EXPECT_TRUE(refused(100, {0xFFFF'FFFF}));
  const Index large = Index{1} << 33;
  EXPECT_FALSE(refused(large, {0, (std::uint64_t{1} << 33) - 1}));
  EXPECT_TRUE(refused(large, {std::uint64_t{1} << 33}));
  EXPECT_TRUE(refused(large, {~std::uint64_t{0}}));
  EXPECT_TRUE(refused(large, {std::uint64_t{1} << 63}));
}

TEST_F(EliasFanoCode, MatchesTheDescriptionInItsHeader) {
  // 4 of 32 indices: 3 low bits would take 4 + 3 + 12 bits; 2 low bits take 4 + 7 + 8.
  const auto layout = EliasFano::layout(32, 4);
  const std::vector<Index> indices{0, 5, 6, 31};
  const std::vector<std::byte> bytes = encoded(context_, IndexCode::elias_fano, {0, 32}, indices);
  // Build the expected bytes bit by bit from the definition.
  std::vector<std::byte> expected(layout.bytes());
  const auto set = [&](std::uint64_t bit) {
    expected[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
  };
  for (std::uint64_t i = 0; i < indices.size(); ++i) {
    const auto value = static_cast<std::uint64_t>(indices[i]);
    set((value >> static_cast<unsigned>(layout.low_bits)) + i);
    for (unsigned bit = 0; bit < static_cast<unsigned>(layout.low_bits); ++bit) {
      if ((value >> bit & 1U) != 0) {
        set(layout.high_bytes() * 8 + i * static_cast<unsigned>(layout.low_bits) + bit);
      }
    }
  }
  EXPECT_EQ(bytes, expected);
}

/// Returns the size in bytes with this number of low bits, computed independently. Empty if the
/// size overflows.
std::optional<std::uint64_t> bytes_with(std::uint64_t universe, std::uint64_t count,
                                        unsigned low_bits) {
  if (low_bits > 0 && count > (std::numeric_limits<std::uint64_t>::max() >> 1U) / low_bits)
    return std::nullopt;
  const std::uint64_t high = count + ((universe - 1) >> low_bits);
  return (high + 7) / 8 + (count * low_bits + 7) / 8;
}

void expect_fewest_bytes(std::uint64_t universe, std::uint64_t count) {
  const EliasFano::Layout layout = EliasFano::layout(universe, count);
  ASSERT_EQ(layout.universe, universe);
  ASSERT_EQ(layout.count, count);
  if (count == 0) {
    ASSERT_EQ(layout.bytes(), 0U);
    return;
  }
  ASSERT_EQ(layout.bytes(), bytes_with(universe, count, static_cast<unsigned>(layout.low_bits)));
  for (unsigned low_bits = 0; low_bits <= 62; ++low_bits) {
    const std::optional<std::uint64_t> bytes = bytes_with(universe, count, low_bits);
    if (!bytes) break;
    ASSERT_LE(layout.bytes(), *bytes) << count << " of " << universe << ": " << layout.low_bits
                                      << " low bits, but " << low_bits << " take fewer bytes";
  }
}

TEST_F(EliasFanoCode, TakesTheNumberOfLowBitsWithTheFewestBytes) {
  for (std::uint64_t universe = 1; universe <= 600; ++universe) {
    for (std::uint64_t count = 0; count <= universe; ++count) {
      expect_fewest_bytes(universe, count);
      if (HasFatalFailure()) return;
    }
  }
  Random random(testing::seed());
  for (int round = 0; round < 200'000; ++round) {
    const std::uint64_t universe = 1 + random.next() % (std::uint64_t{1} << (1 + random.below(61)));
    const std::uint64_t count =
        1 + random.next() % std::min(universe, std::uint64_t{1} << (1 + random.below(40)));
    expect_fewest_bytes(universe, count);
    if (HasFatalFailure()) return;
  }
  for (const std::uint64_t universe : {std::uint64_t{1} << 61, std::uint64_t{1} << 62}) {
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{2}, universe / 2, universe}) {
      expect_fewest_bytes(universe, count);
    }
  }
}

TEST_F(EliasFanoCode, StaysCloseToTheEntropy) {
  for (const Index universe : {5000, 32'768, 793'471, 10'000'000, (1 << 24) + 1}) {
    for (int step = 0; step <= 763; ++step) {  // 0.01% to 20%, a percent more each time
      const double density = 0.0001 * std::pow(1.01, step);
      const auto count = static_cast<Index>(density * static_cast<double>(universe));
      if (count < 1000) continue;
      const double bits =
          static_cast<double>(encoded_bytes(IndexCode::elias_fano, universe, count)) * 8 /
          static_cast<double>(count);
      const double entropy =
          log2_choose(static_cast<double>(universe), static_cast<double>(count)) /
          static_cast<double>(count);
      EXPECT_GE(bits, entropy) << "a code cannot take fewer bits than the entropy";
      // Let universe / count = 2^l · x with 1 <= x < 2. Then Elias-Fano takes l + 1 + x bits per
      // index. The entropy of a sparse set is l + log2 x + log2 e, at most 0.557 bits less. At
      // density d the entropy is about d / 2 · log2 e lower still. The difference is thus 0.6 at d
      // = 1/17 and 0.66 at d = 1/8.
      EXPECT_LE(bits, entropy + (density <= 0.06 ? 0.6 : 0.66)) << count << " of " << universe;
    }
  }
}

class BitmapCode : public OperationTest {};

TEST_F(BitmapCode, HasOneBitPerIndexOfTheRange) {
  EXPECT_EQ(encoded_bytes(IndexCode::bitmap, 1, 1), 1);
  EXPECT_EQ(encoded_bytes(IndexCode::bitmap, 8, 3), 1);
  EXPECT_EQ(encoded_bytes(IndexCode::bitmap, 9, 9), 2);
  EXPECT_EQ(encoded_bytes(IndexCode::bitmap, 793'471, 1), 99'184);
  const std::vector<std::byte> bytes =
      encoded(context_, IndexCode::bitmap, {100, 119}, {100, 103, 107, 108, 118});
  EXPECT_EQ(bytes, (std::vector<std::byte>{std::byte{0x89}, std::byte{0x01}, std::byte{0x04}}));
}

TEST_F(BitmapCode, RejectsNonzeroPaddingAndAnotherNumberOfBits) {
  for (Index universe = 1; universe <= 130; ++universe) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(Bitmap::bytes(universe, 1)));
    for (Index bit = 0; bit < Bitmap::bytes(universe, 1) * 8; ++bit) {
      std::byte& byte = bytes[static_cast<std::size_t>(bit / 8)];
      byte = static_cast<std::byte>(1U << static_cast<unsigned>(bit % 8));
      if (bit < universe) {
        EXPECT_EQ(decoded(context_, IndexCode::bitmap, {0, universe}, bytes, 1),
                  (std::vector<Index>{bit}));
        if (universe > 1) {
          EXPECT_THROW(decoded(context_, IndexCode::bitmap, {0, universe}, bytes, 2),
                       CorruptDataError);
        }
      } else {
        EXPECT_THROW(decoded(context_, IndexCode::bitmap, {0, universe}, bytes, 1),
                     CorruptDataError)
            << "bit " << bit << " of " << universe;
      }
      byte = std::byte{0};
    }
    EXPECT_THROW(decoded(context_, IndexCode::bitmap, {0, universe}, bytes, 1), CorruptDataError);
  }
}

class AllCode : public OperationTest {};

TEST_F(AllCode, EncodesEveryIndexInNoBytes) {
  const IndexRange range{7, 107};
  std::vector<Index> indices(100);
  std::iota(indices.begin(), indices.end(), range.begin);
  EXPECT_EQ(encoded_bytes(IndexCode::all, 100, 100), 0);
  encode(context_, IndexCode::all, range, indices, {});
  EXPECT_EQ(decoded(context_, IndexCode::all, range, {}, 100), indices);
  EXPECT_THROW(decoded(context_, IndexCode::all, range, {}, 99), CorruptDataError);
  EXPECT_THROW(decoded(context_, IndexCode::all, range, {}, 101), CorruptDataError);
  EXPECT_THROW(decoded(context_, IndexCode::all, range, std::vector<std::byte>(1), 100),
               CorruptDataError);
  EXPECT_THROW(encode(context_, IndexCode::all, range, std::span(indices).first(99), {}),
               ContractError);
}

}  // namespace
}  // namespace sparsesync
