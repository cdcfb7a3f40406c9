// The keyed bijection and its row groups: a permutation for any number of rows, with balanced
// groups for any rows.
#include "kernels/partition/bijection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/partition/row_groups.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

constexpr std::uint64_t kSeed = 1;

void expect_permutation(std::int64_t rows, std::uint64_t seed) {
  const Bijection bijection(rows, seed);
  std::vector<bool> hit(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t image = bijection.forward(row);
    ASSERT_TRUE(image >= 0 && image < rows)
        << image << " is the image of " << row << " of " << rows;
    ASSERT_FALSE(hit[static_cast<std::size_t>(image)]) << image << " twice, rows " << rows;
    hit[static_cast<std::size_t>(image)] = true;
    ASSERT_EQ(bijection.backward(image), row) << "rows " << rows;
  }
}

TEST(Bijection, IsAPermutationOfEverySmallNumberOfRows) {
  for (std::int64_t rows = 1; rows <= 300; ++rows) {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, testing::seed()}) {
      expect_permutation(rows, seed);
    }
  }
}

TEST(Bijection, IsAPermutationNextToPowersOfTwo) {
  for (const int k : {9, 10, 13, 16, 17}) {
    const std::int64_t power = std::int64_t{1} << k;
    for (const std::int64_t rows : {power - 1, power, power + 1}) {
      expect_permutation(rows, testing::seed() + static_cast<std::uint64_t>(k));
    }
  }
  expect_permutation(793'471, kSeed);
}

TEST(Bijection, InvertsAtSizesBeyondAnyTable) {
  Random random(testing::seed());
  std::vector<std::int64_t> sizes;
  for (const int k : {24, 31, 32, 33, 40, 61, 62}) {
    const std::int64_t power = std::int64_t{1} << k;
    for (const std::int64_t rows : {power - 1, power, power + 1}) sizes.push_back(rows);
    sizes.push_back(power + random.below(power));
  }
  sizes.push_back(std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t rows : sizes) {
    const Bijection bijection(rows, random.next());
    EXPECT_EQ(bijection.rows(), rows);
    for (int i = 0; i < 200; ++i) {
      const std::int64_t row = i == 0 ? 0 : i == 1 ? rows - 1 : random.below(rows);
      const std::int64_t image = bijection.forward(row);
      ASSERT_TRUE(image >= 0 && image < rows) << image << " of " << rows;
      ASSERT_EQ(bijection.backward(image), row) << "rows " << rows;
      // Every number is also an image.
      const std::int64_t source = bijection.backward(row);
      ASSERT_TRUE(source >= 0 && source < rows) << source << " of " << rows;
      ASSERT_EQ(bijection.forward(source), row) << "rows " << rows;
    }
  }
}

constexpr bool comes_back_at_compile_time() {
  constexpr Bijection kBijection(793'471, 7);
  for (std::int64_t row = 0; row < 100; ++row) {
    if (kBijection.backward(kBijection.forward(row)) != row) return false;
  }
  constexpr RowGroups kGroups({.rows = 1000, .groups = 7, .offset = 3, .seed = 7});
  for (std::int64_t row = 0; row < 100; ++row) {
    if (kGroups.row(kGroups.locate(row)) != row || !kGroups.holds(kGroups.locate(row)))
      return false;
  }
  return true;
}
static_assert(comes_back_at_compile_time());
static_assert(Bijection(1, 7).forward(0) == 0 && Bijection(1, 7).backward(0) == 0);
static_assert(RowGroups({.rows = 10, .groups = 4}).universe() == 3);
static_assert(RowGroups({.rows = 12, .groups = 4}).universe() == 3);
static_assert(RowGroups({.rows = 3, .groups = 8}).universe() == 1);

TEST(Bijection, AnotherSeedGivesAnotherPermutation) {
  constexpr std::int64_t kRows = 10'000;
  std::vector<std::vector<std::int64_t>> images;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const Bijection bijection(kRows, seed);
    const Bijection again(kRows, seed);
    std::vector<std::int64_t> image;
    for (std::int64_t row = 0; row < kRows; ++row) {
      image.push_back(bijection.forward(row));
      ASSERT_EQ(again.forward(row), image.back());
    }
    // Two random permutations agree at one row on average (Poisson). Ten rows are less likely than
    // one in 10^7 pairs.
    for (const std::vector<std::int64_t>& other : images) {
      int same = 0;
      for (std::size_t row = 0; row < other.size(); ++row) same += other[row] == image[row] ? 1 : 0;
      EXPECT_LE(same, 10) << "seed " << seed;
    }
    images.push_back(std::move(image));
  }
}

TEST(RowGroups, DifferInSizeByAtMostOneRow) {
  for (const std::int64_t rows : {1, 2, 3, 7, 8, 9, 100, 255, 256, 257, 1000}) {
    for (const std::int64_t count : {1, 2, 3, 7, 8, 16, 100, 1001}) {
      for (const std::int64_t offset : {std::int64_t{0}, count / 2, count - 1}) {
        const RowGroups groups({.rows = rows, .groups = count, .offset = offset, .seed = kSeed});
        SCOPED_TRACE(::testing::Message()
                     << rows << " rows, " << count << " groups, offset " << offset);
        EXPECT_EQ(groups.groups(), count);
        EXPECT_EQ(groups.universe(), (rows + count - 1) / count);
        std::vector<std::vector<std::int64_t>> at(
            static_cast<std::size_t>(count),
            std::vector<std::int64_t>(static_cast<std::size_t>(groups.universe()), -1));
        for (std::int64_t row = 0; row < rows; ++row) {
          const RowGroups::Place place = groups.locate(row);
          ASSERT_TRUE(place.group >= 0 && place.group < count) << place.group;
          ASSERT_TRUE(place.position >= 0 && place.position < groups.universe()) << place.position;
          std::int64_t& there =
              at[static_cast<std::size_t>(place.group)][static_cast<std::size_t>(place.position)];
          ASSERT_EQ(there, -1) << "two rows at the same position";
          there = row;
          ASSERT_EQ(groups.row(place), row);
        }
        for (std::int64_t group = 0; group < count; ++group) {
          std::int64_t held = 0;
          for (std::int64_t position = 0; position < groups.universe(); ++position) {
            const std::int64_t row =
                at[static_cast<std::size_t>(group)][static_cast<std::size_t>(position)];
            ASSERT_EQ(groups.holds({group, position}), row >= 0);
            held += row >= 0 ? 1 : 0;
          }
          EXPECT_TRUE(held == rows / count || held == (rows + count - 1) / count) << held;
          EXPECT_FALSE(groups.holds({group, groups.universe()}));
        }
      }
    }
  }
}

TEST(RowGroups, AnOffsetRotatesTheGroups) {
  constexpr std::int64_t kRows = 1003;
  for (const std::int64_t count : {1, 2, 7, 16}) {
    const RowGroups plain({.rows = kRows, .groups = count, .seed = kSeed});
    for (std::int64_t offset = 0; offset < count; ++offset) {
      const RowGroups turned({.rows = kRows, .groups = count, .offset = offset, .seed = kSeed});
      for (std::int64_t row = 0; row < kRows; ++row) {
        const RowGroups::Place from = plain.locate(row);
        const RowGroups::Place to = turned.locate(row);
        ASSERT_EQ(to.group, (from.group + offset) % count);
        ASSERT_EQ(to.position, from.position);
      }
    }
  }
}

TEST(RowGroups, WorkBeyondTwoToThe31) {
  Random random(testing::seed());
  for (const std::int64_t rows : {(std::int64_t{1} << 33) + 1, std::int64_t{1} << 61}) {
    for (const std::int64_t count : {1, 3, 64, 1000}) {
      const RowGroups groups(
          {.rows = rows, .groups = count, .offset = count - 1, .seed = random.next()});
      for (int i = 0; i < 1000; ++i) {
        const std::int64_t row = random.below(rows);
        const RowGroups::Place place = groups.locate(row);
        ASSERT_TRUE(place.group >= 0 && place.group < count);
        ASSERT_TRUE(place.position >= 0 && place.position < groups.universe());
        ASSERT_TRUE(groups.holds(place));
        ASSERT_EQ(groups.row(place), row);
      }
    }
  }
}

std::vector<std::int64_t> group_sizes(const RowGroups::Division& division, std::int64_t touched,
                                      std::int64_t stride) {
  const RowGroups groups(division);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(groups.groups()));
  for (std::int64_t i = 0; i < touched; ++i) {
    ++sizes[static_cast<std::size_t>(groups.locate(i * stride).group)];
  }
  return sizes;
}

// The next two tests have fixed seeds, so that they either always pass or never.

TEST(RowGroups, AreEvenlyFilledWhateverTheOrderOfRows) {
  struct Case {
    std::int64_t rows, touched, stride;
  };
  for (const Case& c :
       {Case{793'471, 10'000, 1}, Case{793'471, 10'000, 16}, Case{793'471, 774, 1024},
        Case{std::int64_t{1} << 24, 10'000, 1024}, Case{std::int64_t{1} << 20, 10'000, 64},
        Case{std::int64_t{1} << 33, 10'000, 1}, Case{std::int64_t{1} << 33, 10'000, 1 << 16}}) {
    for (const std::int64_t count : {3, 8, 16}) {
      const double mean = static_cast<double>(c.touched) / static_cast<double>(count);
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        SCOPED_TRACE(::testing::Message() << c.rows << " rows, stride " << c.stride << ", " << count
                                          << " groups, seed " << seed);
        const std::vector<std::int64_t> sizes =
            group_sizes({.rows = c.rows, .groups = count, .seed = seed}, c.touched, c.stride);
        const auto largest = static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
        // Five standard deviations of a binomial count. For 10,000 rows this is within 1.20 times
        // the mean.
        EXPECT_LE(largest, mean + 5 * std::sqrt(mean));
        double chi_square = 0;
        for (const std::int64_t size : sizes) {
          chi_square +=
              (static_cast<double>(size) - mean) * (static_cast<double>(size) - mean) / mean;
        }
        // Mean count - 1 and variance 2·(count - 1). Six standard deviations above the mean,
        // because the tail of the distribution is heavy.
        EXPECT_LE(chi_square, static_cast<double>(count - 1) +
                                  6 * std::sqrt(2.0 * static_cast<double>(count - 1)));
      }
    }
  }
}

TEST(RowGroups, SeedsSpreadRowsLikeRandomDraws) {
  // Over 200 seeds, the mean of chi-square equals its degrees of freedom. A mixer that is too
  // regular or too coarse for strided rows would miss it.
  constexpr int kSeeds = 200;
  constexpr std::int64_t kGroups = 16;
  for (const std::int64_t stride : {1, 16, 79}) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const double mean = 10'000.0 / kGroups;
      for (const std::int64_t size :
           group_sizes({.rows = 793'471, .groups = kGroups, .seed = seed}, 10'000, stride)) {
        sum += (static_cast<double>(size) - mean) * (static_cast<double>(size) - mean) / mean;
      }
    }
    const double average = sum / kSeeds;
    EXPECT_GT(average, 0.5 * (kGroups - 1)) << "stride " << stride;
    EXPECT_LT(average, 1.5 * (kGroups - 1)) << "stride " << stride;
  }
}

}  // namespace
}  // namespace sparsesync
