// ctest: DEVICES
// fetch_pieces and upload_pieces: round trips for any number and size of pieces.
#include "kernels/base/host_copy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/base/error.h"
#include "tests/kernels/values.h"

namespace sparsesync {
namespace {

using Pieces = OperationTest;

/// A layout of pieces with the given sizes in words, with one word between neighbours.
struct Layout {
  explicit Layout(const std::vector<std::size_t>& words) {
    for (const std::size_t count : words) {
      begins.push_back(memory.size());
      sizes.push_back(count);
      memory.resize(memory.size() + count + 1, kBetween);
      total += count;
    }
  }
  std::vector<std::span<std::byte>> pieces() {
    std::vector<std::span<std::byte>> all;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      all.push_back(std::as_writable_bytes(std::span(memory).subspan(begins[i], sizes[i])));
    }
    return all;
  }

  static constexpr Index kBetween = -7;
  std::vector<Index> memory;
  std::vector<std::size_t> begins;
  std::vector<std::size_t> sizes;
  std::size_t total = 0;
};

// Tests as many pieces or words as one launch processes, and a few more and fewer.
TEST_F(Pieces, survive_a_round_trip) {
  std::vector<std::vector<std::size_t>> shapes{{},    {0},         {1},         {2, 2, 2},
                                               {300}, {256, 1, 0}, {255, 2, 5}, {1000, 3}};
  for (const std::size_t count : {63U, 64U, 65U, 200U}) shapes.emplace_back(count, 2);
  for (const std::vector<std::size_t>& words : shapes) {
    Layout layout(words);
    std::vector<Index> given(layout.total);
    std::iota(given.begin(), given.end(), Index{100});
    const std::vector<std::span<std::byte>> pieces = layout.pieces();
    upload_pieces(context_, std::as_bytes(std::span(given)), pieces);
    const std::vector<std::span<const std::byte>> read(pieces.begin(), pieces.end());
    std::vector<Index> back(layout.total);
    fetch_pieces(context_, read, std::as_writable_bytes(std::span(back)).data());
    EXPECT_EQ(back, given) << words.size() << " pieces";
    std::size_t next = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      for (std::size_t k = 0; k < words[i]; ++k) {
        EXPECT_EQ(layout.memory[layout.begins[i] + k], given[next++]);
      }
      EXPECT_EQ(layout.memory[layout.begins[i] + words[i]], Layout::kBetween);
    }
  }
}

TEST_F(Pieces, must_match_the_size_of_the_data) {
  Layout layout({2, 1});
  const std::vector<Index> given(4);
  EXPECT_THROW(upload_pieces(context_, std::as_bytes(std::span(given)), layout.pieces()),
               ContractError);
  EXPECT_THROW(upload_pieces(context_, std::as_bytes(std::span(given).first(2)), layout.pieces()),
               ContractError);
}

}  // namespace
}  // namespace sparsesync
