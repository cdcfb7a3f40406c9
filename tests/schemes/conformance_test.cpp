// The schemes' conformance suite among threads, and what holds without a network.
#include "tests/support/scheme_suite.h"

namespace sparsesync::testing {
namespace {

const std::array<std::vector<int>, 3> kSizes{{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 5, 8}, {3, 6}}};

INSTANTIATE_TEST_SUITE_P(local, SchemeSuite,
                         ::testing::ValuesIn(all_schemes_over(local_workers("local", {}), 9,
                                                              kSizes)),
                         [](const auto& each) { return each.param.variant.label; });

class Patterns : public ::testing::TestWithParam<SchemeVariant> {};

INSTANTIATE_TEST_SUITE_P(schemes, Patterns, ::testing::ValuesIn(scheme_variants()),
                         [](const auto& each) { return each.param.label; });

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const SchemeEntry& entry : all_schemes()) names.emplace_back(entry.name);
  return names;
}

// Word from each worker reaches all others by the end of a reduce phase: what agreement on a
// refusal needs.
TEST_P(Patterns, word_from_each_worker_reaches_all_in_the_reduce_phase) {
  HostMemory memory;
  const BucketSpec bucket = GetParam().bucket({{"t", 100, 4, DType::f32}});
  for (int size = 1; size <= 9; ++size) {
    if (!GetParam().fits(size)) continue;
    std::vector<Pattern> patterns;
    for (int rank = 0; rank < size; ++rank) {
      const auto scheme =
          GetParam().entry().create({Context(memory), &bucket, Rank{rank}, size, 1});
      patterns.push_back(scheme->pattern(Phase::reduce));
    }
    std::vector<std::vector<bool>> knows(static_cast<std::size_t>(size),
                                         std::vector<bool>(static_cast<std::size_t>(size)));
    for (std::size_t rank = 0; rank < knows.size(); ++rank) knows[rank][rank] = true;
    for (std::size_t step = 0; step < patterns[0].size(); ++step) {
      const auto before = knows;
      for (std::size_t rank = 0; rank < knows.size(); ++rank) {
        ASSERT_EQ(patterns[rank].size(), patterns[0].size());
        for (const Rank from : patterns[rank][step].from) {
          const auto& to = patterns[static_cast<std::size_t>(from.value)][step].to;
          EXPECT_TRUE(std::find(to.begin(), to.end(), Rank{static_cast<int>(rank)}) != to.end());
          for (std::size_t other = 0; other < knows.size(); ++other) {
            if (before[static_cast<std::size_t>(from.value)][other]) knows[rank][other] = true;
          }
        }
      }
    }
    for (const std::vector<bool>& of_rank : knows) {
      EXPECT_TRUE(std::all_of(of_rank.begin(), of_rank.end(), [](bool known) { return known; }))
          << size;
    }
  }
}

TEST(Registry, knows_its_schemes_and_lists_them) {
  EXPECT_GE(names().size(), 3U);
  const std::vector<std::string> sorted = names();
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
  try {
    scheme_named("telepathy");
    FAIL() << "found";
  } catch (const InputError& error) {
    for (const std::string& name : names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace sparsesync::testing
