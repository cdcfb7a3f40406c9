// The layout of messages: round trips, and bytes from the network with wrong counts.
#include "schemes/message/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/base/error.h"
#include "schemes/message/header_check.h"
#include "sparsesync/memory.h"
#include "tests/support/random.h"

namespace sparsesync::testing {
namespace {

HostMemory memory;
const Context kContext(memory);

const std::vector<SectionSpec> kSpecs{{{0, 1000}, 1000, 12, std::nullopt},
                                      {{500, 700}, 300, 4, IndexCode::coo},
                                      {{0, Index{1} << 40}, 10, 2, std::nullopt}};

TEST(Message, survives_a_round_trip) {
  Random random(seed());
  for (int run = 0; run < 200; ++run) {
    const std::vector<SectionCounts> counts{{random.below(50), random.below(50)},
                                            {random.below(200), random.below(3)},
                                            {random.below(9), random.below(9)}};
    std::vector<std::byte> message(static_cast<std::size_t>(message_bytes(kSpecs, counts)));
    EXPECT_LE(message_bytes(kSpecs, counts), largest_message_bytes(kSpecs));
    std::vector<Section> sections;
    lay_out(kContext, kSpecs, counts, message, sections);
    Index values = 0;
    for (std::size_t i = 0; i < sections.size(); ++i) {
      EXPECT_EQ(static_cast<Index>(sections[i].values.size()),
                counts[i].rows * kSpecs[i].row_bytes);
      values += static_cast<Index>(sections[i].values.size());
      if (counts[i].rows > 0) {
        EXPECT_EQ((sections[i].values.data() - message.data()) % 16, 0);
      }
      std::memset(sections[i].indices.data(), static_cast<int>(i + 1), sections[i].indices.size());
      std::memset(sections[i].values.data(), static_cast<int>(i + 101), sections[i].values.size());
    }
    EXPECT_EQ(index_bytes(kSpecs, counts), static_cast<Index>(message.size()) - values);
    std::vector<SectionCounts> counts_read;
    std::vector<ConstSection> read;
    read_layout(kContext, kSpecs, message, counts_read, read);
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].counts.indices, counts[i].indices);
      EXPECT_EQ(read[i].counts.rows, counts[i].rows);
      EXPECT_EQ(read[i].code, sections[i].code);
      for (const std::byte byte : read[i].indices) EXPECT_EQ(byte, static_cast<std::byte>(i + 1));
      for (const std::byte byte : read[i].values) EXPECT_EQ(byte, static_cast<std::byte>(i + 101));
    }
    // The same in two pieces.
    const auto head = static_cast<std::size_t>(head_bytes(kSpecs, counts));
    const std::vector<std::byte> body(message.begin() + static_cast<std::ptrdiff_t>(head),
                                      message.end());
    std::vector<ConstSection> pieces;
    read_head(kContext, kSpecs, std::span(message).first(head), counts_read, pieces);
    read_body(kSpecs, body, pieces);
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(pieces[i].code, read[i].code);
      EXPECT_TRUE(std::ranges::equal(pieces[i].indices, read[i].indices));
      EXPECT_TRUE(std::ranges::equal(pieces[i].values, read[i].values));
      if (counts[i].rows > 0) {
        EXPECT_EQ((pieces[i].values.data() - body.data()) % 16, 0);
      }
    }
  }
}

TEST(Message, with_corrupt_pieces_is_rejected) {
  const std::vector<SectionCounts> counts{{5, 5}, {2, 2}, {1, 1}};
  std::vector<std::byte> message(static_cast<std::size_t>(message_bytes(kSpecs, counts)));
  std::vector<Section> sections;
  lay_out(kContext, kSpecs, counts, message, sections);
  const auto head = static_cast<std::size_t>(head_bytes(kSpecs, counts));
  std::vector<SectionCounts> counts_read;
  std::vector<ConstSection> read;
  for (std::size_t size = 0; size <= message.size(); ++size) {
    if (size == head) continue;
    EXPECT_THROW(read_head(kContext, kSpecs, std::span(message).first(size), counts_read, read),
                 CorruptDataError)
        << size;
  }
  read_head(kContext, kSpecs, std::span(message).first(head), counts_read, read);
  for (std::size_t size = 0; size <= message.size(); ++size) {
    if (size == message.size() - head) continue;
    EXPECT_THROW(read_body(kSpecs, std::span(message).first(size), read), CorruptDataError) << size;
  }
}

TEST(Message, with_corrupt_counts_is_rejected) {
  const std::vector<SectionCounts> counts{{5, 5}, {2, 2}, {1, 1}};
  std::vector<std::byte> message(static_cast<std::size_t>(message_bytes(kSpecs, counts)));
  std::vector<Section> sections;
  lay_out(kContext, kSpecs, counts, message, sections);
  std::vector<SectionCounts> counts_read;
  std::vector<ConstSection> read;
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_THROW(read_layout(kContext, kSpecs, std::span(message).first(size), counts_read, read),
                 CorruptDataError)
        << size;
  }
  message.push_back(std::byte{0});
  EXPECT_THROW(read_layout(kContext, kSpecs, message, counts_read, read), CorruptDataError);
  message.pop_back();
  Random random(seed());
  for (std::size_t number = 0; number < 6; ++number) {
    for (const std::uint64_t lie : {std::uint64_t{6}, std::uint64_t{1001}, std::uint64_t{1} << 62,
                                    ~std::uint64_t{0}, random.next(), random.next()}) {
      std::vector<std::byte> wrong = message;
      std::memcpy(wrong.data() + number * 8, &lie, 8);
      try {
        read_layout(kContext, kSpecs, wrong, counts_read, read);
        // The wrong counts happen to give the same size. The sections still lie within the message.
        for (const ConstSection& section : read) {
          EXPECT_GE(section.values.data(), wrong.data());
          EXPECT_LE(section.values.data() + section.values.size(), wrong.data() + wrong.size());
        }
      } catch (const CorruptDataError&) {
      }
    }
  }
}

TEST(Message, is_read_in_front_of_other_messages) {
  const std::vector<SectionCounts> counts{{5, 5}, {2, 2}, {1, 1}};
  const auto bytes = static_cast<std::size_t>(message_bytes(kSpecs, counts));
  std::vector<std::byte> two(bytes + 100);
  std::vector<Section> sections;
  lay_out(kContext, kSpecs, counts, std::span(two).first(bytes), sections);
  std::vector<SectionCounts> counts_read;
  std::vector<ConstSection> read;
  EXPECT_EQ(read_leading(kContext, kSpecs, two, counts_read, read), static_cast<Index>(bytes));
  EXPECT_EQ(read[0].values.data(), sections[0].values.data());
  EXPECT_EQ(read[2].values.size(), 2U);
  EXPECT_THROW(read_layout(kContext, kSpecs, two, counts_read, read), CorruptDataError);
  for (std::size_t size = 0; size < bytes; ++size) {
    EXPECT_THROW(read_leading(kContext, kSpecs, std::span(two).first(size), counts_read, read),
                 CorruptDataError);
  }
}

TEST(Message, is_sent_dense_if_that_takes_fewer_bytes) {
  // A row takes 12 bytes and its index 4, so dense is smaller above three quarters of the rows.
  const SectionSpec spec{{100, 200}, 100, 12, IndexCode::coo, true};
  for (Index rows = 0; rows <= 100; ++rows) {
    const SectionCounts counts = crossing(spec, rows);
    EXPECT_EQ(counts.rows, rows > 75 ? 100 : rows);
    EXPECT_EQ(counts.indices, counts.rows);
    const std::vector<SectionSpec> specs{spec};
    const std::vector<SectionCounts> all{counts};
    EXPECT_EQ(message_bytes(specs, all),
              16 + (rows > 75   ? 100 * 12
                    : rows == 0 ? 0
                                : round_up<Index>(rows * 4, 16) + rows * 12));
    SectionSpec never = spec;
    never.densifies = false;
    EXPECT_EQ(crossing(never, rows).rows, rows);
  }
  const Index huge = Index{1} << 40;
  EXPECT_EQ(crossing({{0, huge}, huge, Index{1} << 30, IndexCode::coo, true}, 7).rows, 7);
}

// More rows take more bytes, so the size determines the number of rows.
TEST(Message, of_wide_rows_has_counts_that_follow_from_its_size) {
  for (const Index universe : {Index{1}, Index{7}, Index{1000}, Index{99'184}, Index{1} << 40}) {
    for (const std::optional<IndexCode> code :
         {std::optional<IndexCode>{}, std::optional(IndexCode::coo),
          std::optional(IndexCode::bitmap)}) {
      if (code == IndexCode::bitmap && universe > 99'184) continue;
      const std::vector<SectionSpec> specs{{{5, 5 + universe}, universe, 32, code}};
      const std::vector<SectionCounts> full{{universe, universe}};
      const Index all = universe <= 99'184 && !code ? message_bytes(specs, full) : -1;
      Index before = -1;
      for (Index rows = 0; rows <= std::min<Index>(universe, 70'000); ++rows) {
        const std::vector<SectionCounts> counts{{rows, rows}};
        const Index bytes = message_bytes(specs, counts);
        // All rows of a range need no index code, so they may take as many bytes as fewer rows.
        if (bytes == all) {
          ASSERT_FALSE(numbers_of_bytes(specs, bytes));
          continue;
        }
        ASSERT_GT(bytes, before) << rows << " of " << universe;
        before = bytes;
        if (rows % 97 != 0 && rows < universe - 2) continue;
        const std::optional<SectionCounts> found = numbers_of_bytes(specs, bytes);
        ASSERT_TRUE(found);
        ASSERT_EQ(found->rows, rows);
        ASSERT_EQ(found->indices, rows);
        if (bytes + 1 == all) continue;
        EXPECT_THROW(numbers_of_bytes(specs, bytes + 1), CorruptDataError);
      }
    }
  }
  EXPECT_THROW(numbers_of_bytes(std::vector<SectionSpec>{{{0, 10}, 10, 32, std::nullopt}}, 0),
               CorruptDataError);
  // The size does not determine the counts for narrow rows, several row spaces, or sections that
  // may be sent dense.
  EXPECT_FALSE(numbers_of_bytes(kSpecs, 100));
  EXPECT_FALSE(numbers_of_bytes(std::vector<SectionSpec>{{{0, 10}, 10, 4, std::nullopt}}, 56));
  EXPECT_FALSE(
      numbers_of_bytes(std::vector<SectionSpec>{{{0, 10}, 10, 32, IndexCode::coo, true}}, 64));
}

TEST(KnownNumbers, are_compared_with_the_counts_in_messages) {
  const std::vector<SectionCounts> counts{{5, 5}, {2, 2}, {1, 1}};
  std::vector<std::byte> message(static_cast<std::size_t>(message_bytes(kSpecs, counts)));
  std::vector<Section> sections;
  lay_out(kContext, kSpecs, counts, message, sections);
  KnownNumbers known(kContext);
  known.expect(message, counts);
  const std::vector<Index> other{42};
  std::vector<Index> fetched(1);
  known.verify(std::array{std::as_bytes(std::span(other))},
               std::as_writable_bytes(std::span(fetched)));
  EXPECT_EQ(fetched, other);
  known.expect(message, counts);
  message[8] ^= std::byte{1};
  EXPECT_THROW(known.verify({}, {}), CorruptDataError);
  known.verify({}, {});  // verify() has cleared the known numbers
  std::vector<SectionCounts> read;
  known.fetch(kSpecs.size(), std::array{std::span<const std::byte>(message)}, read);
  EXPECT_EQ(read[0].rows, 4);
  EXPECT_EQ(read[2].indices, 1);
  EXPECT_THROW(
      known.fetch(kSpecs.size(), std::array{std::span<const std::byte>(message).first(47)}, read),
      CorruptDataError);
}

TEST(Message, bounds_do_not_overflow) {
  const Index huge = Index{1} << 56;
  EXPECT_EQ(largest_message_bytes(std::vector<SectionSpec>{{{0, huge}, huge, huge, std::nullopt}}),
            std::numeric_limits<Index>::max());
}

}  // namespace
}  // namespace sparsesync::testing
