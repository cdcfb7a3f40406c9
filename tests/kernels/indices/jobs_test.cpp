// ctest: DEVICES
// Operations on several jobs at once give each job the result of a separate call. Job counts lie
// around the number that one launch processes, and some jobs are empty.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/base/error.h"
#include "kernels/indices/index_code.h"
#include "kernels/partition/owners.h"
#include "kernels/partition/partition.h"
#include "kernels/rows/aggregate.h"
#include "kernels/rows/rows.h"
#include "tests/kernels/values.h"
#include "tests/support/random.h"

namespace sparsesync {
namespace {

using testing::distinct_rows;
using testing::Random;

class Jobs : public OperationTest {
 protected:
  static constexpr std::array kCounts{std::size_t{0},  std::size_t{1},  std::size_t{15},
                                      std::size_t{16}, std::size_t{17}, std::size_t{40}};
  static constexpr Index kRows = 3000;

  /// Draws increasing rows for each job. Every fifth job is empty.
  std::vector<std::vector<Index>> sets(std::size_t count) {
    std::vector<std::vector<Index>> all;
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(distinct_rows(random_, kRows, i % 5 == 4 ? 0 : random_.below(kRows)));
    }
    return all;
  }

  Random random_{testing::seed()};
};

TEST_F(Jobs, encode_and_decode) {
  for (const std::size_t count : kCounts) {
    const std::vector<std::vector<Index>> given = sets(count);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<std::vector<std::byte>> alone;
    std::vector<std::vector<Index>> back;
    for (std::size_t i = 0; i < count; ++i) {
      const auto size = static_cast<Index>(given[i].size());
      const IndexCode code = kIndexCodes.at(i % kIndexCodes.size());
      bytes.emplace_back(static_cast<std::size_t>(encoded_bytes(code, kRows, size)));
      alone.emplace_back(bytes.back().size());
      back.emplace_back(given[i].size());
      encode(context_, code, {0, kRows}, given[i], alone.back());
    }
    std::vector<EncodeJob> encodes;
    std::vector<DecodeJob> decodes;
    for (std::size_t i = 0; i < count; ++i) {
      const IndexCode code = kIndexCodes.at(i % kIndexCodes.size());
      encodes.push_back({code, {0, kRows}, given[i], bytes[i]});
      decodes.push_back({code, {0, kRows}, bytes[i], back[i]});
    }
    encode_all(context_, encodes);
    decode_all(context_, decodes);
    synchronize(context_);
    EXPECT_EQ(bytes, alone) << count;
    EXPECT_EQ(back, given) << count;
  }
}

TEST_F(Jobs, a_code_of_a_wrong_size_is_rejected_before_any_write) {
  std::vector<std::byte> bytes(8);
  std::vector<Index> right(2, -1);
  std::vector<Index> wrong(1, -1);
  const std::vector<DecodeJob> jobs{{IndexCode::coo, {0, 10}, bytes, right},
                                    {IndexCode::coo, {0, 10}, bytes, wrong}};
  EXPECT_THROW(decode_all(context_, jobs), CorruptDataError);
  EXPECT_EQ(right, std::vector<Index>(2, -1));
}

TEST_F(Jobs, gather_and_scatter) {
  constexpr Index kWidth = 6;
  std::vector<float> from(kRows * kWidth);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  for (const std::size_t count : kCounts) {
    const std::vector<std::vector<Index>> rows = sets(count);
    std::vector<std::vector<float>> out;
    for (const std::vector<Index>& of_job : rows) out.emplace_back(of_job.size() * 2);
    std::vector<GatherJob> gathers;
    for (std::size_t i = 0; i < count; ++i) {
      gathers.push_back({rows[i], static_cast<Index>(i % 3) * 2, matrix_of(out[i], 2)});
    }
    gather_rows_all(context_, matrix_of(std::as_const(from), kWidth), gathers);
    synchronize(context_);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < rows[i].size(); ++k) {
        const Index first = rows[i][k] * kWidth + static_cast<Index>(i % 3) * 2;
        ASSERT_EQ(out[i][2 * k], static_cast<float>(first));
        ASSERT_EQ(out[i][2 * k + 1], static_cast<float>(first + 1));
      }
    }
    // Scatter back over zeros. No two jobs may write the same element, so there is one job for each
    // of three column slices.
    std::vector<float> to(from.size());
    std::vector<ScatterJob> scatters;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 3); ++i) {
      scatters.push_back({matrix_of(std::as_const(out[i]), 2), rows[i], static_cast<Index>(i) * 2});
    }
    scatter_rows_all(context_, scatters, matrix_of(to, kWidth));
    synchronize(context_);
    std::vector<float> expected(from.size());
    for (std::size_t i = 0; i < scatters.size(); ++i) {
      for (const Index row : rows[i]) {
        for (Index column = 0; column < 2; ++column) {
          const auto at =
              static_cast<std::size_t>(row * kWidth + static_cast<Index>(i) * 2 + column);
          expected[at] = from[at];
        }
      }
    }
    EXPECT_EQ(to, expected) << count;
  }
}

TEST_F(Jobs, rows_at_positions) {
  for (const std::size_t count : kCounts) {
    const auto group_count = static_cast<Index>(std::max<std::size_t>(count, 1));
    const RowGroups groups({.rows = kRows, .groups = group_count, .seed = 5});
    std::vector<std::vector<Index>> positions;
    std::vector<std::vector<Index>> rows;
    for (Index group = 0; group < static_cast<Index>(count); ++group) {
      positions.push_back(distinct_rows(random_, groups.size(group), groups.size(group) / 2));
      rows.emplace_back(positions.back().size());
    }
    std::vector<PositionsJob> jobs;
    for (std::size_t i = 0; i < count; ++i) {
      jobs.push_back({static_cast<Index>(i), positions[i], rows[i]});
    }
    rows_at_all(context_, groups, jobs);
    synchronize(context_);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < rows[i].size(); ++k) {
        const RowGroups::Place place = groups.locate(rows[i][k]);
        ASSERT_EQ(place.group, static_cast<Index>(i));
        ASSERT_EQ(place.position, positions[i][k]);
      }
    }
  }
}

TEST_F(Jobs, a_position_without_a_row_is_found_in_any_job) {
  const RowGroups groups({.rows = 10, .groups = 2, .seed = 5});
  const std::vector<Index> right{0, 4};
  const std::vector<Index> wrong{5};
  std::vector<Index> rows(3);
  const std::vector<PositionsJob> jobs{{0, right, std::span(rows).first(2)},
                                       {1, wrong, std::span(rows).last(1)}};
  EXPECT_THROW(
      {
        rows_at_all(context_, groups, jobs);
        synchronize(context_);
      },
      CorruptDataError);
}

TEST_F(Jobs, positions_and_rows_of_owners) {
  const std::vector<Index> united = distinct_rows(random_, 2 * kRows, kRows);
  std::vector<std::int32_t> owners;
  for (std::size_t i = 0; i < united.size(); ++i) {
    owners.push_back(static_cast<std::int32_t>(random_.below(3)));
  }
  for (const std::size_t count : kCounts) {
    std::vector<std::vector<Index>> rows;
    for (const std::vector<Index>& places : sets(count)) {
      std::vector<Index>& of_job = rows.emplace_back();
      for (const Index place : places) of_job.push_back(united[static_cast<std::size_t>(place)]);
    }
    if (count > 1) rows[1].back() = 2 * kRows;  // not in the union
    std::vector<std::vector<Index>> places;
    std::vector<std::vector<Index>> kept;
    for (const std::vector<Index>& of_job : rows) {
      places.emplace_back(of_job.size());
      kept.emplace_back(of_job.size());
    }
    std::vector<PlacesJob> sought;
    std::vector<OwnedJob> owned;
    for (std::size_t i = 0; i < count; ++i) {
      sought.push_back({rows[i], places[i]});
      owned.push_back({rows[i], places[i], kept[i]});
    }
    std::vector<Index> found(count, -1);
    find_places_all(context_, united, sought, found);
    synchronize(context_);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(found[i], std::ssize(rows[i]) - (i == 1 ? 1 : 0)) << i;
      for (Index k = 0; k < found[i]; ++k) {
        const auto at = static_cast<std::size_t>(k);
        ASSERT_EQ(united[static_cast<std::size_t>(places[i][at])], rows[i][at]);
      }
    }
    if (count > 1) places[1].back() = 0;
    std::vector<Index> counts(count, -1);
    rows_of_owner_all(context_, owners, owned, 2, counts);
    synchronize(context_);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<Index> expected;
      for (std::size_t k = 0; k < rows[i].size(); ++k) {
        if (owners[static_cast<std::size_t>(places[i][k])] == 2) expected.push_back(rows[i][k]);
      }
      ASSERT_EQ(counts[i], std::ssize(expected)) << i;
      kept[i].resize(expected.size());
      EXPECT_EQ(kept[i], expected) << i;
    }
  }
}

// Like aggregate(), but with row counts that only the device knows.
TEST_F(Jobs, sums_of_rows_that_the_device_counts) {
  constexpr Index kWidth = 3;
  AggregateWorkspace workspace(context_);
  for (const Index rows : {Index{0}, Index{1}, Index{700}}) {
    std::vector<std::vector<Index>> indices;
    std::vector<std::vector<float>> values;
    for (int part = 0; part < 4; ++part) {
      indices.push_back(distinct_rows(random_, kRows, rows));
      values.emplace_back(indices.back().size() * kWidth, static_cast<float>(part + 1));
    }
    std::vector<RowSparse> parts;
    std::vector<std::span<const Index>> given;
    for (std::size_t part = 0; part < indices.size(); ++part) {
      parts.push_back({indices[part], matrix_of(std::as_const(values[part]), kWidth)});
      given.emplace_back(indices[part]);
    }
    const auto room = static_cast<std::size_t>(std::min(4 * rows, kRows));
    std::vector<Index> united(room);
    std::vector<Index> count(1);
    unite(context_, {0, kRows}, given, united, Count(count.data()), workspace);
    std::vector<float> sums(room * kWidth, -1);
    aggregate_counted(context_, united, Count(count.data()), parts, 2, matrix_of(sums, kWidth),
                      workspace);
    synchronize(context_);
    const auto there = static_cast<std::size_t>(count[0]);
    std::vector<float> expected(there * kWidth);
    aggregate(context_, std::span(united).first(there), parts, 2, matrix_of(expected, kWidth),
              workspace);
    synchronize(context_);
    // Rows beyond the count were not written.
    expected.resize(sums.size(), -1);
    EXPECT_EQ(sums, expected) << rows;
  }
}

}  // namespace
}  // namespace sparsesync
