// ctest: DEVICES
// check_indices() and coalesce(): the resulting rows, and the exact bits of their sums.
#include "kernels/rows/coalesce.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::Random;

using CheckIndices = OperationTest;
using Coalesce = OperationTest;

TEST_F(CheckIndices, FindsTheFirstIndexThatIsOutside) {
  const auto outside = [&](Index rows, const std::vector<Index>& indices) {
    return check_indices(context_, rows, indices).outside;
  };
  EXPECT_EQ(outside(10, {0, 9, 3}), std::nullopt);
  EXPECT_EQ(outside(10, {0, 10, 3}), 1);
  EXPECT_EQ(outside(10, {0, 9, 11, -1}), 2);
  EXPECT_EQ(outside(10, {-1}), 0);
  EXPECT_EQ(outside(1, {0, 0, 1}), 2);
  EXPECT_EQ(outside(Index{1} << 33, {Index{1} << 32, (Index{1} << 33) - 1, Index{1} << 33}), 2);
  EXPECT_EQ(outside(10, {5, std::numeric_limits<Index>::min()}), 1);
  EXPECT_EQ(outside(10, {5, std::numeric_limits<Index>::max()}), 1);
  EXPECT_EQ(outside(0, {}), std::nullopt);
  EXPECT_EQ(outside(0, {0}), 0);
}

TEST_F(CheckIndices, RecognizesCoalescedIndices) {
  const auto coalesced = [&](const std::vector<Index>& indices) {
    return check_indices(context_, 10, indices).coalesced;
  };
  EXPECT_TRUE(coalesced({}));
  EXPECT_TRUE(coalesced({0}));
  EXPECT_TRUE(coalesced({0, 1, 9}));
  EXPECT_FALSE(coalesced({0, 0}));
  EXPECT_FALSE(coalesced({1, 2, 2}));
  EXPECT_FALSE(coalesced({1, 0}));
  EXPECT_FALSE(coalesced({0, 5, 4, 9}));
}

TEST_F(CheckIndices, FindsFaultsAnywhereInManyIndices) {
  Random random(testing::seed());
  for (const Index count : {1, 31, 32, 33, 255, 256, 257, 1025, 70'000}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<Index> indices = testing::distinct_rows(random, Index{1} << 40, count);
      // Repeat some indices, and move some outside of the range.
      IndexCheck expected;
      for (Index spoiled = random.below(3); spoiled > 0 && count > 1; --spoiled) {
        const auto at = static_cast<std::size_t>(1 + random.below(count - 1));
        indices[at] = indices[at - 1];
      }
      for (Index spoiled = random.below(3); spoiled > 0; --spoiled) {
        const auto at = static_cast<std::size_t>(random.below(count));
        indices[at] = random.below(2) == 0 ? -1 - random.below(5) : Index{1} << 40;
      }
      for (std::size_t i = 0; i < indices.size(); ++i) {
        if (indices[i] < 0 || indices[i] >= Index{1} << 40) {
          expected.outside = static_cast<Index>(i);
          break;
        }
        if (i > 0 && indices[i] <= indices[i - 1]) expected.coalesced = false;
      }
      const IndexCheck check = check_indices(context_, Index{1} << 40, indices);
      ASSERT_EQ(check.outside, expected.outside) << count << " indices";
      ASSERT_EQ(check.coalesced, expected.coalesced) << count << " indices";
    }
  }
}

template <typename T>
struct Coalesced {
  std::vector<Index> indices;
  std::vector<T> values;
};

template <typename T>
Coalesced<T> coalesced(const Context& context, const std::vector<Index>& indices,
                       ConstMatrix values, Index rows, Index first_row,
                       CoalesceWorkspace& workspace) {
  Coalesced<T> out;
  out.indices.resize(indices.size());
  out.values.resize(indices.size() * static_cast<std::size_t>(values.width));
  std::vector<Index> written(1, -1);
  coalesce(context, RowSparse{indices, values}, {first_row, first_row + rows}, out.indices,
           matrix_of(out.values, values.width), Count(written.data()), workspace);
  const Index count = written[0];
  EXPECT_TRUE(count >= 0 && count <= static_cast<Index>(indices.size())) << count;
  out.indices.resize(static_cast<std::size_t>(count));
  out.values.resize(static_cast<std::size_t>(count * values.width));
  return out;
}

TEST_F(Coalesce, SumsRepeatedRowsAndSorts) {
  for_each_dtype([&]<typename T>(T) {
    CoalesceWorkspace workspace(context_);
    const std::vector<T> values = values_of<T>({1, 10, 2, 20, 3, 30, 4, 40, 5, 50});
    const Coalesced<T> out =
        coalesced<T>(context_, {7, 0, 7, 3, 0}, matrix_of(values, 2), 8, 0, workspace);
    EXPECT_EQ(out.indices, (std::vector<Index>{0, 3, 7}));
    EXPECT_EQ(bits_of(out.values), bits_of(values_of<T>({7, 70, 4, 40, 4, 40})));
  });
}

TEST_F(Coalesce, AddsTheFirstRow) {
  CoalesceWorkspace workspace(context_);
  const std::vector<float> values{1, 2, 3};
  const Index first = Index{1} << 40;
  const Coalesced<float> out =
      coalesced<float>(context_, {2, 2, 0}, matrix_of(values, 1), 3, first, workspace);
  EXPECT_EQ(out.indices, (std::vector<Index>{first, first + 2}));
  EXPECT_EQ(out.values, (std::vector<float>{3, 3}));
}

TEST_F(Coalesce, AcceptsAnEmptyInput) {
  CoalesceWorkspace workspace(context_);
  const std::vector<float> none;
  EXPECT_TRUE(coalesced<float>(context_, {}, matrix_of(none, 4), 8, 3, workspace).indices.empty());
  std::vector<Index> count(1, -1);
  coalesce(context_, RowSparse{{}, ConstMatrix{nullptr, DType::bf16, 0, 4}}, {0, 8}, {},
           Matrix{nullptr, DType::bf16, 0, 4}, Count(count.data()), workspace);
  EXPECT_EQ(count[0], 0);
}

TEST_F(Coalesce, SumsInTheOrderOfTheInput) {
  CoalesceWorkspace workspace(context_);
  // From the left, 2^24 + 1 + 1 stays at 2^24; from the right, it is 2^24 + 2.
  const std::vector<float> falling{0x1p24F, 1, 1};
  const std::vector<float> rising{1, 1, 0x1p24F};
  EXPECT_EQ(coalesced<float>(context_, {5, 5, 5}, matrix_of(falling, 1), 6, 0, workspace).values,
            (std::vector<float>{0x1p24F}));
  EXPECT_EQ(coalesced<float>(context_, {5, 5, 5}, matrix_of(rising, 1), 6, 0, workspace).values,
            (std::vector<float>{0x1p24F + 2}));
  // The same with other rows in between.
  const std::vector<float> between{0x1p24F, 8, 1, 9, 1};
  EXPECT_EQ(
      coalesced<float>(context_, {5, 1, 5, 0, 5}, matrix_of(between, 1), 6, 0, workspace).values,
      (std::vector<float>{9, 8, 0x1p24F}));
}

TEST_F(Coalesce, SumsBf16InF32AndRoundsOnce) {
  CoalesceWorkspace workspace(context_);
  // bf16 has 8 significant bits. 256 + 1 rounds to 256, and so would every further addition of 1,
  // but 256 + 1 + 1 is 258.
  const std::vector<bf16> values = values_of<bf16>({256, 1, 1});
  EXPECT_EQ(
      bits_of(coalesced<bf16>(context_, {0, 0, 0}, matrix_of(values, 1), 1, 0, workspace).values),
      bits_of(values_of<bf16>({258})));
  // 257 lies halfway between 256 and 258, and 259 halfway between 258 and 260. Ties go to the
  // number whose last bit is 0.
  const std::vector<bf16> ties = values_of<bf16>({256, 1, 258, 1});
  EXPECT_EQ(
      bits_of(coalesced<bf16>(context_, {0, 0, 1, 1}, matrix_of(ties, 1), 2, 0, workspace).values),
      bits_of(values_of<bf16>({256, 260})));
}

TEST_F(Coalesce, SumsEveryDtypeInItsSumType) {
  CoalesceWorkspace workspace(context_);
  const auto sum_of = [&]<typename T>(const std::vector<T>& values) {
    const std::vector<Index> same(values.size(), 0);
    return coalesced<T>(context_, same, matrix_of(values, 1), 1, 0, workspace).values.at(0);
  };
  EXPECT_EQ(sum_of(std::vector<double>{0x1p40, 1, 0x1p-12}), 0x1p40 + 1 + 0x1p-12);
  EXPECT_EQ(sum_of(values_of<f16>({2048, 1, 1})).bits, value_of<f16>(2050).bits);
  EXPECT_EQ(sum_of(values_of<f16>({65504, 65504})).bits, 0x7C00);
  EXPECT_EQ(sum_of(std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::max(), 2}),
            std::numeric_limits<std::int32_t>::min() + 1);
  EXPECT_EQ(sum_of(std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(), -1}),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(sum_of(std::vector<std::int64_t>{std::int64_t{1} << 53, 1, 1}),
            (std::int64_t{1} << 53) + 2);
}

TEST_F(Coalesce, RowsThatCancelStay) {
  CoalesceWorkspace workspace(context_);
  const std::vector<float> values{1, -0.0F, -1, -0.0F};
  const Coalesced<float> out =
      coalesced<float>(context_, {4, 4}, matrix_of(values, 2), 5, 0, workspace);
  EXPECT_EQ(out.indices, (std::vector<Index>{4}));
  // A sum begins at +0, so both sums are +0.
  EXPECT_EQ(bits_of(out.values), bits_of(std::vector<float>{0.0F, 0.0F}));
}

template <typename T>
void expect_in_order_sums(const Context& context, Random& random) {
  using Sum = typename ValueTraits<T>::Sum;
  // f16 has no finite numbers above 65504.
  constexpr double kLarge = std::is_same_v<T, f16> ? 0x1p12 : 0x1p20;
  CoalesceWorkspace workspace(context);
  for (const Index width : {1, 3, 32}) {
    for (const Index rows : {Index{1}, Index{10}, Index{1000}, Index{1} << 33}) {
      const Index nnz = 1 + random.below(300);
      std::vector<Index> indices;
      std::vector<T> values;
      std::map<Index, std::vector<std::vector<Sum>>> terms;
      for (Index i = 0; i < nnz; ++i) {
        indices.push_back(rows - 1 - random.below(std::min<Index>(rows, 200)));
        std::vector<Sum> term;
        for (Index column = 0; column < width; ++column) {
          const double number = (random.uniform() - 0.5) * (random.below(4) == 0 ? kLarge : 4.0);
          values.push_back(value_of<T>(number));
          term.push_back(ValueTraits<T>::widen(values.back()));
        }
        terms[indices.back()].push_back(term);
      }
      std::vector<Index> expected_indices;
      std::vector<T> expected;
      for (const auto& [index, rows_of_terms] : terms) {
        expected_indices.push_back(index + 11);
        for (std::size_t column = 0; column < static_cast<std::size_t>(width); ++column) {
          Sum sum = 0;
          for (const std::vector<Sum>& term : rows_of_terms) sum += term[column];
          expected.push_back(rounded<T>(sum));
        }
      }
      const Unaligned<T> unaligned(values, width);
      const Coalesced<T> out =
          coalesced<T>(context, indices, unaligned.matrix(), rows, 11, workspace);
      ASSERT_EQ(out.indices, expected_indices);
      ASSERT_EQ(bits_of(out.values), bits_of(expected)) << rows << " rows, width " << width;
    }
  }
}

TEST_F(Coalesce, HasTheBitsOfSummingInOrder) {
  Random random(testing::seed());
  for_each_dtype([&]<typename T>(T) { expect_in_order_sums<T>(context_, random); });
}

/// Draws `others` random indices, and one more row with terms[i] terms for each i.
std::vector<Index> crowded_indices(Random& random, Index rows, Index others,
                                   const std::vector<Index>& terms) {
  std::vector<Index> indices;
  for (Index i = 0; i < others; ++i) indices.push_back(random.below(rows));
  for (const Index count : terms) {
    indices.insert(indices.end(), static_cast<std::size_t>(count), random.below(rows));
  }
  for (std::size_t i = indices.size(); i > 1; --i) {
    std::swap(indices[i - 1],
              indices[static_cast<std::size_t>(random.below(static_cast<Index>(i)))]);
  }
  return indices;
}

/// Compares coalesce() with plain sums in input order.
/// @param offset_bytes  distance of the values from a multiple of 16 bytes
template <typename T>
void expect_same_as_plain_sums(const Context& context, Random& random,
                               const std::vector<Index>& indices, Index rows, Index width,
                               std::size_t offset_bytes, CoalesceWorkspace& workspace) {
  using Sum = typename ValueTraits<T>::Sum;
  const auto columns = static_cast<std::size_t>(width);
  std::vector<T> values;
  for (std::size_t i = 0; i < indices.size() * columns; ++i) {
    values.push_back(value_of<T>((random.uniform() - 0.5) * 64));
  }
  std::map<Index, std::vector<std::size_t>> terms;
  for (std::size_t i = 0; i < indices.size(); ++i) terms[indices[i]].push_back(i);

  std::vector<std::byte> from(values.size() * sizeof(T) + offset_bytes);
  std::memcpy(from.data() + offset_bytes, values.data(), values.size() * sizeof(T));
  std::vector<std::byte> to(from.size());
  std::vector<Index> out(indices.size(), -1);
  std::vector<Index> count(1, -1);
  const auto nnz = static_cast<Index>(indices.size());
  const DType dtype = ValueTraits<T>::dtype;
  coalesce(context, {indices, {from.data() + offset_bytes, dtype, nnz, width}}, {5, 5 + rows}, out,
           {to.data() + offset_bytes, dtype, nnz, width}, Count(count.data()), workspace);
  ASSERT_EQ(count[0], static_cast<Index>(terms.size()));
  std::size_t place = 0;
  for (const auto& [row, places] : terms) {
    ASSERT_EQ(out[place], row + 5);
    for (std::size_t column = 0; column < columns; ++column) {
      Sum sum{};
      for (const std::size_t i : places) sum += ValueTraits<T>::widen(values[i * columns + column]);
      T result;
      std::memcpy(&result, to.data() + offset_bytes + (place * columns + column) * sizeof(T),
                  sizeof(T));
      const T expected =
          places.size() == 1 ? values[places[0] * columns + column] : rounded<T>(sum);
      ASSERT_EQ(bits_of(std::vector<T>{result}), bits_of(std::vector<T>{expected}))
          << "row " << row << " of " << places.size() << " terms, column " << column << " of "
          << width << ", " << offset_bytes << " bytes off";
    }
    ++place;
  }
}

TEST_F(Coalesce, OfManyTermsHasTheBitsOfPlainSums) {
  Random random(testing::seed());
  CoalesceWorkspace workspace(context_);
  for_each_dtype([&]<typename T>(T) {
    // A GPU treats 64 terms as many. It loads them into shared memory in stages of 32 to 128.
    const std::vector<Index> terms{2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 1000};
    for (const Index width : {1, 2, 4, 7, 8, 31, 32, 33, 40, 72}) {
      const std::vector<Index> indices = crowded_indices(random, 5000, 700, terms);
      for (const std::size_t offset : {std::size_t{0}, sizeof(T), std::size_t{1}}) {
        expect_same_as_plain_sums<T>(context_, random, indices, 5000, width, offset, workspace);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_F(Coalesce, OfAnyNumberOfTerms) {
  Random random(testing::seed());
  CoalesceWorkspace workspace(context_);
  for (const Index count : {1, 31, 32, 33, 255, 256, 257, 2047, 2048, 2049, 4097, 30'000}) {
    // Nearly all indices distinct; few distinct rows; one row; too many rows for positions to fit
    // into the sort key.
    for (const Index rows : {Index{1} << 30, Index{20}, Index{1}, Index{1} << 61}) {
      std::vector<Index> indices;
      for (Index i = 0; i < count; ++i) indices.push_back(random.below(rows));
      expect_same_as_plain_sums<float>(context_, random, indices, rows, 3, 0, workspace);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Coalesce, RequiresCapacityForEveryRow) {
  CoalesceWorkspace workspace(context_);
  const std::vector<float> values{1, 2};
  const std::vector<Index> indices{0, 0};
  std::vector<Index> short_indices(1);
  std::vector<float> out(2);
  std::vector<Index> count(1);
  EXPECT_THROW(coalesce(context_, RowSparse{indices, matrix_of(values, 1)}, {0, 1}, short_indices,
                        matrix_of(out, 1), Count(count.data()), workspace),
               ContractError);
  std::vector<Index> long_indices(2);
  EXPECT_THROW(coalesce(context_, RowSparse{indices, matrix_of(values, 2)}, {0, 1}, long_indices,
                        matrix_of(out, 1), Count(count.data()), workspace),
               ContractError);
}

}  // namespace
}  // namespace sparsesync
