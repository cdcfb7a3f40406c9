// ctest: DEVICES
// Top-k selection, compared with a sort of all elements.
#include "kernels/topk/topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#if defined(SPARSESYNC_WITH_CUDA)
#endif
#include "kernels/base/threads.h"
#include "kernels/topk/residual.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

class Magnitude : public OperationTest {
 protected:
  MagnitudeCut cut_of(const std::vector<float>& values, Index k) {
    CutWorkspace workspace(context_);
    std::vector<MagnitudeCut> cut(1);
    find_cut(context_, values, k, cut.data(), workspace);
    synchronize(context_);
    return cut[0];
  }
};

/// Returns the positions that top-k selects, in increasing order.
std::vector<Index> expected_places(const std::vector<float>& values, Index k) {
  std::vector<Index> places(values.size());
  std::iota(places.begin(), places.end(), Index{0});
  const auto size_of = [&](Index place) {
    return std::abs(values[static_cast<std::size_t>(place)]);
  };
  std::ranges::stable_sort(places, [&](Index a, Index b) { return size_of(a) > size_of(b); });
  places.resize(static_cast<std::size_t>(std::min<Index>(k, std::ssize(places))));
  std::erase_if(places, [&](Index place) { return size_of(place) == 0; });
  std::ranges::sort(places);
  return places;
}

using Draw = std::function<float(Random&, Index)>;

struct Shape {
  const char* name;
  Draw draw;
};

/// Distributions of values, including some that mislead sampling.
std::vector<Shape> shapes() {
  return {
      {"normal",
       [](Random& random, Index) {
         return static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                                   std::cos(6.283185307 * random.uniform()));
       }},
      {"few values",
       [](Random& random, Index) { return static_cast<float>(random.below(5)) - 2.0F; }},
      {"all alike", [](Random&, Index) { return -0.25F; }},
      {"zeros", [](Random&, Index i) { return i % 2 == 0 ? 0.0F : -0.0F; }},
      {"few that are not zero",
       [](Random& random, Index) {
         return random.below(500) == 0 ? 1.0F + static_cast<float>(random.uniform()) : 0.0F;
       }},
      {"large at the end",
       [](Random& random, Index i) {
         return (i > 60000 ? 1e6F : 1.0F) * static_cast<float>(random.uniform());
       }},
      {"of all sizes",
       [](Random& random, Index) {
         return static_cast<float>(
             std::ldexp(random.uniform() - 0.5, static_cast<int>(random.below(250)) - 140));
       }},
  };
}

std::vector<float> drawn(const Shape& shape, Random& random, Index count) {
  std::vector<float> values;
  for (Index i = 0; i < count; ++i) values.push_back(shape.draw(random, i));
  return values;
}

TEST_F(Magnitude, TheLargestAreSelectedAndTiesGoToTheFirst) {
  Random random(testing::seed());
  for (const Shape& shape : shapes()) {
    for (const Index count : {1, 2, 17, 1000, 70001}) {
      const std::vector<float> values = drawn(shape, random, count);
      for (const Index k :
           {Index{0}, Index{1}, count / 100, count / 10, count / 2, count - 1, count, count + 5}) {
        SCOPED_TRACE(std::string(shape.name) + ", " + std::to_string(k) + " of " +
                     std::to_string(count));
        const std::vector<Index> expected = expected_places(values, k);
        const std::vector<MagnitudeCut> cut{cut_of(values, k)};
        std::vector<Index> counts{-1, 0};
        count_taken(context_, values, cut.data(), Count(counts.data()));
        synchronize(context_);
        ASSERT_EQ(counts[0], std::ssize(expected));
        std::vector<float> residual = values;
        std::vector<float> velocity(values.size());
        std::iota(velocity.begin(), velocity.end(), 1.0F);
        std::vector<Index> indices(expected.size());
        std::vector<float> taken(expected.size());
        std::vector<float> velocities(expected.size());
        take_largest(context_, residual, velocity, cut.data(),
                     {indices, matrix_of(taken, 1), velocities}, Count(counts.data()),
                     Count(counts.data() + 1));
        synchronize(context_);
        ASSERT_EQ(counts[0], std::ssize(expected));
        ASSERT_EQ(counts[1], 0);
        ASSERT_EQ(indices, expected);
        std::vector<float> left = values;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const auto place = static_cast<std::size_t>(expected[i]);
          ASSERT_EQ(bits_of(taken[i]), bits_of(values[place]));
          ASSERT_EQ(velocities[i], static_cast<float>(place) + 1);
          ASSERT_EQ(velocity[place], 0);
          left[place] = 0;
        }
        ASSERT_EQ(residual, left);
        ASSERT_EQ(std::ranges::count(velocity, 0.0F), std::ssize(expected));
      }
    }
  }
}

#if defined(SPARSESYNC_WITH_CUDA)
TEST_F(Magnitude, SeveralLaunchesSelectTheSame) {
  if (context_.device() != Device::cuda) GTEST_SKIP() << "needs a CUDA device";
  Random random(testing::seed());
  for (const Shape& shape : shapes()) {
    const std::vector<float> values = drawn(shape, random, 40001);
    for (const Index k : {400, 20000}) {
      SCOPED_TRACE(std::string(shape.name) + ", " + std::to_string(k));
      const std::vector<Index> expected = expected_places(values, k);
      const std::vector<MagnitudeCut> cut{cut_of(values, k)};
      std::vector<Index> counts{-1, 0};
      std::vector<float> residual = values;
      std::vector<Index> indices(expected.size());
      std::vector<float> taken(expected.size());
      cuda::take_largest_in_parts(context_, residual, {}, cut.data(),
                                  {indices, matrix_of(taken, 1), {}}, Count(counts.data()),
                                  Count(counts.data() + 1), 8 << 10);
      synchronize(context_);
      ASSERT_EQ(counts, (std::vector<Index>{std::ssize(expected), 0}));
      ASSERT_EQ(indices, expected);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto place = static_cast<std::size_t>(expected[i]);
        ASSERT_EQ(bits_of(taken[i]), bits_of(values[place]));
        ASSERT_EQ(residual[place], 0);
      }
    }
  }
}
#endif

TEST_F(Magnitude, ValuesThatAreOnlyAlignedToElements) {
  Random random(testing::seed());
  for (const Shape& shape : shapes()) {
    for (const Index count : {1, 2047, 2049, 70001}) {
      const std::vector<float> values = drawn(shape, random, count);
      Displaced<float> displaced(values, sizeof(float));
      for (const Index k : {count / 100, count / 2}) {
        SCOPED_TRACE(std::string(shape.name) + ", " + std::to_string(k) + " of " +
                     std::to_string(count));
        CutWorkspace workspace(context_);
        std::vector<MagnitudeCut> cut(1);
        find_cut(context_, displaced.span(), k, cut.data(), workspace);
        std::vector<Index> counts{-1};
        count_taken(context_, displaced.span(), cut.data(), Count(counts.data()));
        synchronize(context_);
        const MagnitudeCut aligned = cut_of(values, k);
        EXPECT_EQ(cut[0].level, aligned.level);
        EXPECT_EQ(cut[0].ties, aligned.ties);
        EXPECT_EQ(counts[0], std::ssize(expected_places(values, k)));
      }
    }
  }
}

TEST_F(Magnitude, ElementsBeyondTheCapacityStayAndAreCounted) {
  std::vector<float> residual{5, -1, 3, -4, 2};
  const std::vector<MagnitudeCut> cut{cut_of(residual, 4)};
  std::vector<Index> indices(2);
  std::vector<float> taken(2);
  std::vector<Index> counts(2);
  take_largest(context_, residual, {}, cut.data(), {indices, matrix_of(taken, 1), {}},
               Count(counts.data()), Count(counts.data() + 1));
  synchronize(context_);
  EXPECT_EQ(counts[0], 4);
  EXPECT_EQ(indices, (std::vector<Index>{0, 2}));
  EXPECT_EQ(taken, (std::vector<float>{5, 3}));
  EXPECT_EQ(residual, (std::vector<float>{0, -1, 0, -4, 2}));
}

TEST_F(Magnitude, RoundingErrorsStay) {
  const std::vector<float> before{1.0F + 0x1p-20F, -2.0F, 1e6F, 0.1F};
  std::vector<float> residual = before;
  const std::vector<MagnitudeCut> cut{cut_of(residual, 3)};
  std::vector<Index> indices(3);
  std::vector<f16> taken(3);
  std::vector<Index> counts(2);
  take_largest(context_, residual, {}, cut.data(), {indices, matrix_of(taken, 1), {}},
               Count(counts.data()), Count(counts.data() + 1));
  synchronize(context_);
  EXPECT_EQ(indices, (std::vector<Index>{0, 1, 2}));
  EXPECT_EQ(counts, (std::vector<Index>{3, 1}));
  EXPECT_EQ(residual, (std::vector<float>{0x1p-20F, 0, 1e6F, 0.1F}));
  give_back_rows(context_, matrix_of(std::as_const(taken), 1), indices, matrix_of(residual, 1));
  synchronize(context_);
  EXPECT_EQ(residual, before);
}

TEST_F(Magnitude, OfNaNsIsAboveInfinity) {
  const std::vector<float> values{1, std::nanf(""), -HUGE_VALF, 7};
  EXPECT_EQ(cut_of(values, 1).level, magnitude_of(values[1]));
  EXPECT_EQ(cut_of(values, 2).level, magnitude_of(HUGE_VALF));
  EXPECT_EQ(cut_of(values, 3).level, magnitude_of(7));
}

TEST_F(Magnitude, RejectsOtherSizesAndTypes) {
  std::vector<float> residual(4, 1.0F);
  std::vector<float> shorter(3);
  const std::vector<MagnitudeCut> cut(1);
  std::vector<Index> indices(4);
  std::vector<float> taken(4);
  std::vector<double> wide(4);
  std::vector<Index> counts(2);
  const Count count(counts.data());
  EXPECT_THROW(take_largest(context_, residual, {}, cut.data(),
                            {indices, matrix_of(shorter, 1), {}}, count, count),
               ContractError);
  EXPECT_THROW(take_largest(context_, residual, {}, cut.data(), {indices, matrix_of(wide, 1), {}},
                            count, count),
               ContractError);
  EXPECT_THROW(take_largest(context_, residual, {}, cut.data(),
                            {indices, matrix_of(taken, 1), shorter}, count, count),
               ContractError);
  EXPECT_THROW(take_largest(context_, residual, shorter, cut.data(),
                            {indices, matrix_of(taken, 1), taken}, count, count),
               ContractError);
  EXPECT_THROW(cut_of(residual, -1), ContractError);
}

// For the CPU implementation only, because a GPU context has no threads.
TEST(MagnitudeThreads, SelectTheSame) {
  Random random(testing::seed());
  HostMemory memory;
  for (const Shape& shape : shapes()) {
    const std::vector<float> values = drawn(shape, random, 300000);
    std::vector<std::vector<Index>> found;
    std::vector<std::vector<float>> left;
    for (const int count : {1, 2, 5}) {
      Threads threads(count);
      const Context context(memory, threads);
      CutWorkspace workspace(context);
      MagnitudeCut cut;
      find_cut(context, values, 3000, &cut, workspace);
      std::vector<Index> counts(3);
      count_taken(context, values, &cut, Count(counts.data()));
      std::vector<float> residual = values;
      std::vector<Index> indices(static_cast<std::size_t>(counts[0]));
      std::vector<float> taken(indices.size());
      take_largest(context, residual, {}, &cut, {indices, matrix_of(taken, 1), {}},
                   Count(counts.data() + 1), Count(counts.data() + 2));
      EXPECT_EQ(counts[0], counts[1]);
      found.push_back(indices);
      left.push_back(residual);
    }
    EXPECT_EQ(found[0], expected_places(values, 3000)) << shape.name;
    EXPECT_EQ(found[0], found[1]);
    EXPECT_EQ(found[0], found[2]);
    EXPECT_EQ(left[0], left[1]);
    EXPECT_EQ(left[0], left[2]);
  }
}

}  // namespace
}  // namespace sparsesync
