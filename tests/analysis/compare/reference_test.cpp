// Reference results: the sums of small traces, and the detection of every kind of wrong result.
#include "analysis/compare/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "analysis/trace/trace.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using testing::Random;

template <typename T>
TracePart part_of(std::vector<Index> indices, const std::vector<T>& values) {
  TracePart part;
  part.indices = std::move(indices);
  part.values.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(part.values.data(), values.data(), part.values.size());
  return part;
}

/// Writes a trace of parts[step][worker][tensor] and opens it.
Trace written(const Scratch& scratch, TraceHeader header,
              const std::vector<std::vector<std::vector<TracePart>>>& parts) {
  header.steps = static_cast<int>(parts.size());
  header.workers = static_cast<int>(parts[0].size());
  header.source = "a test";
  TraceWriter writer(scratch / "trace", header, true);
  for (int step = 0; step < header.steps; ++step) {
    for (int worker = 0; worker < header.workers; ++worker) {
      writer.write(Rank{worker}, step,
                   parts[static_cast<std::size_t>(step)][static_cast<std::size_t>(worker)]);
    }
  }
  writer.commit();
  return Trace::open(scratch / "trace");
}

TEST(ReferenceSums, AddRecordedValuesIncludingRepeats) {
  const Scratch scratch;
  TraceHeader header;
  header.tensors = {{"a", 10, 2, DType::f32}, {"b", 4, 1, DType::bf16}};
  const Trace trace =
      written(scratch, header,
              {{{part_of<float>({7, 0, 7}, {1, -10, 2, 20, 4, 40}),
                 part_of<bf16>({3}, values_of<bf16>({5}))},
                {part_of<float>({7, 9}, {-8, 80, 16, 160}), part_of<bf16>({}, {})},
                {part_of<float>({}, {}), part_of<bf16>({3, 0, 3}, values_of<bf16>({-7, 1, 2}))}},
               {{part_of<float>({}, {}), part_of<bf16>({}, {})},
                {part_of<float>({2}, {3, 4}), part_of<bf16>({}, {})},
                {part_of<float>({}, {}), part_of<bf16>({}, {})}}});
  ASSERT_TRUE(trace.has_values());
  const std::vector<ReferenceSum> sums = reference_sums(trace, 0);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums[0].dtype, DType::f32);
  EXPECT_EQ(sums[0].width, 2);
  EXPECT_EQ(sums[0].indices, (std::vector<Index>{0, 7, 9}));
  EXPECT_EQ(sums[0].sums, (std::vector<double>{2, 20, -3, 110, 16, 160}));
  EXPECT_EQ(sums[0].magnitudes, (std::vector<double>{2, 20, 13, 130, 16, 160}));
  EXPECT_EQ(sums[0].most_terms, 3);
  EXPECT_FALSE(sums[0].exact);
  EXPECT_EQ(sums[1].dtype, DType::bf16);
  EXPECT_EQ(sums[1].indices, (std::vector<Index>{0, 3}));
  EXPECT_EQ(sums[1].sums, (std::vector<double>{1, 0}));
  EXPECT_EQ(sums[1].magnitudes, (std::vector<double>{1, 14}));
  EXPECT_EQ(sums[1].most_terms, 3);

  const std::vector<ReferenceSum> second = reference_sums(trace, 1);
  EXPECT_EQ(second[0].indices, (std::vector<Index>{2}));
  EXPECT_EQ(second[0].sums, (std::vector<double>{3, 4}));
  EXPECT_EQ(second[0].most_terms, 1);
  EXPECT_TRUE(second[1].indices.empty());
  EXPECT_EQ(second[1].most_terms, 0);
}

TEST(ReferenceSums, AddGeneratedValuesExactly) {
  const Scratch scratch;
  TraceHeader header;
  header.tensors = {{"a", 100, 3, DType::f32}};
  header.seed = 5;
  // Without recorded values, repeated indices count as one row.
  const std::vector<std::vector<TracePart>> workers{{TracePart{{4, 99, 4}, {}}},
                                                    {TracePart{{4, 0}, {}}}};
  const Trace trace = written(scratch, header, {workers});
  const ReferenceSum sum = reference_sums(trace, 0).at(0);
  EXPECT_TRUE(sum.exact);
  EXPECT_EQ(sum.indices, (std::vector<Index>{0, 4, 99}));
  EXPECT_EQ(sum.most_terms, 2);
  const std::vector<std::vector<Index>> distinct{{4, 99}, {0, 4}};
  std::map<Index, std::vector<double>> expected;
  for (int worker = 0; worker < 2; ++worker) {
    const std::vector<Index>& rows = distinct[static_cast<std::size_t>(worker)];
    const std::vector<std::byte> bytes = made_values(trace.header(), Rank{worker}, 0, 0, rows);
    ASSERT_EQ(bytes.size(), rows.size() * 3 * sizeof(float));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<double>& row = expected[rows[i]];
      row.resize(3);
      for (std::size_t column = 0; column < 3; ++column) {
        float value = 0;
        std::memcpy(&value, bytes.data() + (i * 3 + column) * sizeof(float), sizeof(float));
        EXPECT_TRUE(value == 1 || value == 2 || value == 3 || value == 4) << value;
        row[column] += static_cast<double>(value);
      }
    }
  }
  std::vector<double> flat;
  for (const auto& [row, values] : expected) flat.insert(flat.end(), values.begin(), values.end());
  EXPECT_EQ(sum.sums, flat);
  EXPECT_EQ(sum.magnitudes, flat);
}

/// Returns sums of rows 2, 5 and 9 of width 2. Row 5 cancels to zero.
ReferenceSum exact_reference() {
  ReferenceSum reference;
  reference.width = 2;
  reference.indices = {2, 5, 9};
  reference.sums = {1, 2, 0, 0, 5, 6};
  reference.magnitudes = {1, 2, 2, 2, 5, 6};
  reference.most_terms = 2;
  reference.exact = true;
  return reference;
}

std::optional<std::string> difference(const ReferenceSum& reference,
                                      const std::vector<Index>& indices,
                                      const std::vector<float>& values) {
  return difference_from(reference, indices, matrix_of(values, reference.width));
}

TEST(DifferenceFrom, AcceptsCorrectResults) {
  const ReferenceSum reference = exact_reference();
  EXPECT_EQ(difference(reference, {2, 5, 9}, {1, 2, 0, 0, 5, 6}), std::nullopt);
  // A cancelled row may be absent, and a zero row may be present for an untouched row. -0.0 is
  // zero.
  EXPECT_EQ(difference(reference, {2, 9}, {1, 2, 5, 6}), std::nullopt);
  EXPECT_EQ(difference(reference, {0, 2, 3, 9, 100}, {0, 0, 1, 2, -0.0F, 0, 5, 6, 0, -0.0F}),
            std::nullopt);
  EXPECT_EQ(difference(reference, {2, 5, 9}, {1, 2, -0.0F, 0, 5, 6}), std::nullopt);
  ReferenceSum nothing;
  nothing.width = 2;
  nothing.exact = true;
  EXPECT_EQ(difference(nothing, {}, {}), std::nullopt);
  EXPECT_EQ(difference(nothing, {4}, {0, 0}), std::nullopt);
}

void expect_difference(const std::optional<std::string>& text,
                       const std::vector<std::string>& parts) {
  ASSERT_TRUE(text.has_value());
  for (const std::string& part : parts) {
    EXPECT_NE(text->find(part), std::string::npos) << "'" << part << "' is not in: " << *text;
  }
}

TEST(DifferenceFrom, FindsEveryWrongRow) {
  const ReferenceSum reference = exact_reference();
  // Missing rows: the first, the last, and all.
  expect_difference(difference(reference, {5, 9}, {0, 0, 5, 6}),
                    {"row 2", "column 0", "0, but", "is 1"});
  expect_difference(difference(reference, {2, 5}, {1, 2, 0, 0}), {"row 9", "column 0", "is 5"});
  expect_difference(difference(reference, {}, {}), {"row 2"});
  // An additional row at the beginning, in the middle, and at the end.
  expect_difference(difference(reference, {0, 2, 9}, {0, 7, 1, 2, 5, 6}),
                    {"row 0", "column 1", "7, but", "is 0"});
  expect_difference(difference(reference, {2, 4, 9}, {1, 2, 7, 0, 5, 6}), {"row 4", "column 0"});
  expect_difference(difference(reference, {2, 9, 10}, {1, 2, 5, 6, 0, 7}), {"row 10", "column 1"});
  // Each element is off by one.
  for (std::size_t at = 0; at < 6; ++at) {
    std::vector<float> values{1, 2, 0, 0, 5, 6};
    values[at] += 1;
    const std::vector<Index> rows{2, 5, 9};
    expect_difference(difference(reference, rows, values),
                      {"row " + std::to_string(rows[at / 2]), "column " + std::to_string(at % 2)});
  }
  // An element differs only in its last bit.
  expect_difference(difference(reference, {2, 5, 9}, {1, 2, 0, 0, 5, std::nextafter(6.0F, 7.0F)}),
                    {"row 9", "column 1"});
  expect_difference(difference(reference, {2, 5, 9}, {1, 2, 0x1p-149F, 0, 5, 6}),
                    {"row 5", "column 0"});
  // Two rows are exchanged.
  expect_difference(difference(reference, {2, 5, 9}, {5, 6, 0, 0, 1, 2}), {"row 2"});
}

TEST(DifferenceFrom, FindsRowsThatDoNotIncrease) {
  const ReferenceSum reference = exact_reference();
  expect_difference(difference(reference, {5, 2, 9}, {0, 0, 1, 2, 5, 6}), {"row 2"});
  expect_difference(difference(reference, {2, 9, 5}, {1, 2, 5, 6, 0, 0}),
                    {"row 5 after row 9", "not increasing"});
  expect_difference(difference(reference, {2, 2, 9}, {1, 2, 0, 0, 5, 6}),
                    {"row 2 after row 2", "not increasing"});
}

TEST(DifferenceFrom, HandlesNanAndInfinity) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Scratch scratch;
  TraceHeader header;
  header.tensors = {{"a", 10, 4, DType::f32}};
  const Trace trace = written(
      scratch, header,
      {{{part_of<float>({1}, {kNan, kInf, kInf, 1})}, {part_of<float>({1}, {1, 1, -kInf, 1})}}});
  const ReferenceSum reference = reference_sums(trace, 0).at(0);
  EXPECT_EQ(difference(reference, {1}, {kNan, kInf, kNan, 2}), std::nullopt);
  EXPECT_EQ(difference(reference, {1}, {-kNan, kInf, -kNan, 2}), std::nullopt);
  expect_difference(difference(reference, {1}, {1, kInf, kNan, 2}), {"column 0"});
  expect_difference(difference(reference, {1}, {kInf, kInf, kNan, 2}), {"column 0"});
  expect_difference(difference(reference, {1}, {kNan, -kInf, kNan, 2}), {"column 1"});
  expect_difference(difference(reference, {1}, {kNan, kNan, kNan, 2}), {"column 1"});
  expect_difference(difference(reference, {1}, {kNan, 3e38F, kNan, 2}), {"column 1"});
  expect_difference(difference(reference, {1}, {kNan, kInf, 0, 2}), {"column 2"});
  expect_difference(difference(reference, {1}, {kNan, kInf, kNan, kNan}), {"column 3"});
  expect_difference(difference(reference, {1}, {kNan, kInf, kNan, kInf}), {"column 3"});
  // NaN and infinity in an untouched row, and in sums that must be exact.
  expect_difference(difference(reference, {1, 3}, {kNan, kInf, kNan, 2, 0, 0, kNan, 0}),
                    {"row 3", "column 2"});
  expect_difference(difference(exact_reference(), {2, 9}, {1, kNan, 5, 6}), {"row 2", "column 1"});
  expect_difference(difference(reference, {}, {}), {"row 1", "column 0"});
}

/// Computes the reference sum of workers × rows of values with reference_sums().
template <typename T>
ReferenceSum reference_of(const std::vector<std::vector<T>>& workers) {
  const Scratch scratch;
  TraceHeader header;
  header.tensors = {{"a", 10, static_cast<Index>(workers[0].size()), ValueTraits<T>::dtype}};
  std::vector<std::vector<TracePart>> parts;
  parts.reserve(workers.size());
  for (const std::vector<T>& values : workers) parts.push_back({part_of<T>({3}, values)});
  return reference_sums(written(scratch, header, {parts}), 0).at(0);
}

TEST(DifferenceFrom, AcceptsAnyOrderOfSummationAndNothingElse) {
  Random random(testing::seed());
  constexpr std::size_t kWidth = 200;
  constexpr std::size_t kWorkers = 16;
  std::vector<std::vector<float>> workers(kWorkers);
  for (std::vector<float>& values : workers) {
    for (std::size_t i = 0; i < kWidth; ++i) {
      values.push_back(
          static_cast<float>((random.uniform() - 0.5) * (random.below(3) == 0 ? 1e4 : 1.0)));
    }
  }
  const ReferenceSum reference = reference_of(workers);
  ASSERT_EQ(reference.most_terms, static_cast<std::int64_t>(kWorkers));
  bool order_shows = false;
  std::vector<float> first;
  for (std::size_t turn = 0; turn < kWorkers; ++turn) {
    std::vector<float> sums(kWidth);
    for (std::size_t worker = 0; worker < kWorkers; ++worker) {
      for (std::size_t i = 0; i < kWidth; ++i) sums[i] += workers[(worker + turn) % kWorkers][i];
    }
    EXPECT_EQ(difference(reference, {3}, sums), std::nullopt) << "from worker " << turn << " on";
    if (turn == 0) first = sums;
    order_shows = order_shows || sums != first;
  }
  EXPECT_TRUE(order_shows) << "no order changed a bit, so nothing was tested";
  // The header documents a tolerance of u · (terms + 2) · Σ|x|.
  for (std::size_t at = 0; at < kWidth; at += 13) {
    const double bound = std::ldexp(reference.magnitudes[at] * (kWorkers + 2), -24);
    for (const double sign : {1.0, -1.0}) {
      // f32 numbers just inside and just outside of the tolerance.
      const auto towards = static_cast<float>(reference.sums[at]);
      auto inside = static_cast<float>(reference.sums[at] + sign * bound);
      while (std::abs(static_cast<double>(inside) - reference.sums[at]) > bound) {
        inside = std::nextafter(inside, towards);
      }
      auto outside = inside;
      while (std::abs(static_cast<double>(outside) - reference.sums[at]) <= bound) {
        outside = std::nextafter(outside, sign > 0 ? 1e30F : -1e30F);
      }
      std::vector<float> sums = first;
      sums[at] = inside;
      EXPECT_EQ(difference(reference, {3}, sums), std::nullopt);
      sums[at] = outside;
      expect_difference(difference(reference, {3}, sums),
                        {"row 3", "column " + std::to_string(at)});
    }
  }
}

TEST(DifferenceFrom, AllowsTheRoundingOfBf16) {
  // bf16 cannot represent 256 + 1. Both neighbours of this tie are within two roundings. A number
  // that is off by five is not.
  const ReferenceSum reference = reference_of<bf16>({values_of<bf16>({256}), values_of<bf16>({1})});
  const std::vector<Index> rows{3};
  const auto differs = [&](double number) {
    const std::vector<bf16> values = values_of<bf16>({number});
    return difference_from(reference, rows, matrix_of(values, 1)).has_value();
  };
  EXPECT_FALSE(differs(256));
  EXPECT_FALSE(differs(258));
  EXPECT_FALSE(differs(255));
  EXPECT_TRUE(differs(262));
  EXPECT_TRUE(differs(252));
  EXPECT_TRUE(differs(0));
}

TEST(DifferenceFrom, UsesTheRoundoffOfF64ForF64) {
  const ReferenceSum reference =
      reference_of<double>({{0.1, 1e300, 5}, {0.2, 1e300, -5}, {0.3, -1e300, 1}});
  const std::vector<Index> rows{3};
  const auto differs = [&](const std::vector<double>& values) {
    return difference_from(reference, rows, matrix_of(values, 3)).has_value();
  };
  EXPECT_FALSE(differs({0.1 + 0.2 + 0.3, 1e300, 1}));
  EXPECT_FALSE(differs({0.3 + 0.2 + 0.1, 1e300, 1}));
  EXPECT_TRUE(differs({static_cast<double>(0.6F), 1e300, 1}));  // summed in f32
  EXPECT_TRUE(differs({0.6, 1.0001e300, 1}));
  EXPECT_TRUE(differs({0.6, 1e300, 1 + 1e-12}));
  EXPECT_TRUE(differs({0.6, 1e300, 0}));
}

TEST(DifferenceFrom, AllowsTheRoundingAndTheOverflowOfF16) {
  const ReferenceSum reference = reference_of<f16>(
      {values_of<f16>({2048, 65504, 0x1p-24, 1}), values_of<f16>({1, 65504, 0x1p-24, -1})});
  const std::vector<Index> rows{3};
  const auto differs = [&](const std::vector<double>& numbers) {
    const std::vector<f16> values = values_of<f16>(numbers);
    return difference_from(reference, rows, matrix_of(values, 4)).has_value();
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(differs({2048, kInf, 0x1p-23, 0}));
  EXPECT_FALSE(differs({2050, kInf, 0x1p-23, 0}));
  EXPECT_TRUE(differs({2060, kInf, 0x1p-23, 0}));
  EXPECT_TRUE(differs({2048, 1000, 0x1p-23, 0})) << "an overflow does not allow a finite number";
  EXPECT_TRUE(differs({kInf, kInf, 0x1p-23, 0}));
  EXPECT_TRUE(differs({2048, kInf, 0x1p-20, 0}));
  EXPECT_TRUE(differs({2048, kInf, 0x1p-23, 0.125}));
}

template <typename T>
void expect_wrapped_integers_compared() {
  constexpr T kMost = std::numeric_limits<T>::max();
  constexpr T kLeast = std::numeric_limits<T>::min();
  const ReferenceSum reference =
      reference_of<T>({{kMost, -5, kLeast, 7}, {1, 2, kLeast, kMost - 7}});
  EXPECT_TRUE(reference.exact);
  EXPECT_EQ(reference.integers.size(), 4U);
  EXPECT_TRUE(reference.sums.empty());
  const std::vector<T> right{kLeast, -3, 0, kMost};
  const std::vector<Index> rows{3};
  EXPECT_EQ(difference_from(reference, rows, matrix_of(right, 4)), std::nullopt);
  for (std::size_t at = 0; at < 4; ++at) {
    // Off by one. For i64, a comparison as double would miss the difference.
    std::vector<T> wrong = right;
    wrong[at] = static_cast<T>(wrong[at] ^ T{1});
    expect_difference(difference_from(reference, rows, as_const(matrix_of(wrong, 4))),
                      {"row 3", "column " + std::to_string(at), std::to_string(right[at])});
  }
  // A missing row and an additional row.
  expect_difference(difference_from(reference, {}, matrix_of(std::vector<T>{}, 4)),
                    {"row 3", "column 0: 0, but"});
  const std::vector<Index> two{3, 8};
  const std::vector<T> more{kLeast, -3, 0, kMost, 0, 0, 0, 1};
  expect_difference(difference_from(reference, two, matrix_of(more, 4)), {"row 8", "column 3"});
}

TEST(DifferenceFrom, ComparesWrappedIntegers) {
  expect_wrapped_integers_compared<std::int32_t>();
  expect_wrapped_integers_compared<std::int64_t>();
}

TEST(ReferenceSums, OfGeneratedValuesAreExactInEveryDtype) {
  for_each_dtype([]<typename T>(T) {
    const Scratch scratch;
    TraceHeader header;
    header.tensors = {{"t", 9, 2, ValueTraits<T>::dtype}};
    const std::vector<std::vector<TracePart>> parts(6, {TracePart{{4, 7}, {}}});
    const Trace trace = written(scratch, header, {parts});
    const ReferenceSum reference = reference_sums(trace, 0).at(0);
    EXPECT_TRUE(reference.exact);
    using Sum = typename ValueTraits<T>::Sum;
    std::vector<Sum> sums(4);
    for (int worker = 0; worker < 6; ++worker) {
      const std::vector<TracePart> part = trace.load(Rank{worker}, 0);
      for (std::size_t i = 0; i < 4; ++i) {
        T value;
        std::memcpy(&value, part[0].values.data() + i * sizeof(T), sizeof(T));
        EXPECT_TRUE(ValueTraits<T>::widen(value) >= 1 && ValueTraits<T>::widen(value) <= 4);
        sums[i] += ValueTraits<T>::widen(value);
      }
    }
    const std::vector<Index> rows{4, 7};
    std::vector<T> right;
    for (const Sum sum : sums) right.push_back(ValueTraits<T>::narrow(sum));
    EXPECT_EQ(difference_from(reference, rows, as_const(matrix_of(right, 2))), std::nullopt);
    right[3] = ValueTraits<T>::narrow(sums[3] + 1);
    EXPECT_NE(difference_from(reference, rows, as_const(matrix_of(right, 2))), std::nullopt);
  });
}

// bf16 represents integers up to 256 exactly. Larger sums are rounded.
TEST(ReferenceSums, OfManyWorkersInBf16AreNotExact) {
  const Scratch scratch;
  constexpr int kWorkers = 200;
  TraceHeader header;
  header.tensors = {{"t", 1, 1, DType::bf16}};
  const Trace trace = written(
      scratch, header, {std::vector<std::vector<TracePart>>(kWorkers, {TracePart{{0}, {}}})});
  const std::vector<ReferenceSum> sums = reference_sums(trace, 0);
  EXPECT_FALSE(sums[0].exact);
  const bf16 rounded = ValueTraits<bf16>::narrow(static_cast<float>(sums[0].sums[0]));
  const std::vector<Index> rows{0};
  EXPECT_FALSE(difference_from(sums[0], rows,
                               {reinterpret_cast<const std::byte*>(&rounded), DType::bf16, 1, 1}));
  const bf16 wrong = ValueTraits<bf16>::narrow(static_cast<float>(sums[0].sums[0]) * 1.05F);
  EXPECT_TRUE(difference_from(sums[0], rows,
                              {reinterpret_cast<const std::byte*>(&wrong), DType::bf16, 1, 1}));
}

}  // namespace
}  // namespace sparsesync
