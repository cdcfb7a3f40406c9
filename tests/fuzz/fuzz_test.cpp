// ctest: LIBRARIES sparsesync_fuzz_targets LABELS engine
// Runs all targets of `scripts/stress fuzz` briefly in every build, with the seeds of each target
// and random changes of them. SPARSESYNC_FULL runs 20 times as many inputs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

#include "kernels/base/error.h"
#include "tests/fuzz/targets.h"
#include "tests/support/random.h"

namespace sparsesync::fuzz {
namespace {

using sparsesync::testing::Random;
using sparsesync::testing::seed;

std::string shown(const Bytes& input) {
  constexpr std::size_t kMost = 400;
  std::string text = fmt::format("{} bytes:", input.size());
  for (std::size_t i = 0; i < std::min(input.size(), kMost); ++i) {
    text += fmt::format(" {:02x}", std::to_integer<unsigned>(input[i]));
  }
  return text;
}

void change(Random& random, Bytes& input) {
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(random.below(static_cast<Index>(count)));
  };
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(below(16) + 1, input.size() - at);
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    switch (below(6)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<std::byte>(below(256));
        break;
      case 1:
        if (at < input.size()) input[at] ^= static_cast<std::byte>(1U << below(8));
        break;
      case 2:
        input.erase(begin, end);
        break;
      case 3: {
        const Bytes part(begin, end);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)),
                     part.begin(), part.end());
        break;
      }
      case 4:
        std::fill(begin, end, below(2) == 0 ? std::byte{0} : std::byte{0xFF});
        break;
      default:
        input.resize(at);
    }
  }
}

class Fuzz : public ::testing::TestWithParam<Target> {};

TEST_P(Fuzz, reads_seeds_and_changes_of_them) {
  const Target& target = GetParam();
  const std::vector<Bytes> seeds = target.seeds();
  ASSERT_FALSE(seeds.empty());
  const auto run = [&](const Bytes& input) {
    try {
      target.run(input);
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << shown(input);
    }
  };
  for (const Bytes& each : seeds) run(each);
  run({});
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread exists yet
  const bool full = std::getenv("SPARSESYNC_FULL") != nullptr;
  const int inputs = (target.name == "sessions" ? 400 : 3000) * (full ? 20 : 1);
  Random random(seed());
  for (int i = 0; i < inputs && !HasFatalFailure(); ++i) {
    Bytes input = seeds[static_cast<std::size_t>(random.below(std::ssize(seeds)))];
    constexpr std::size_t kSmall = 4096;  // larger inputs are slow and have been read once above
    if (input.size() > kSmall) input.resize(kSmall);
    change(random, input);
    run(input);
  }
}

TEST(FuzzTargets, are_found_by_their_names) {
  EXPECT_EQ(target_named("npy").name, "npy");
  EXPECT_THROW(target_named("spoons"), InputError);
}

TEST(FuzzTargets, corrupted_messages_are_detected_and_valid_ones_are_accepted) {
  int found = 0;
  const std::vector<Bytes> seeds = lies();
  for (const Bytes& each : seeds) {
    if (!ends_well_with_a_liar(each)) ++found;
    constexpr std::size_t kBeforeLies = 5 + 2 * 20;
    EXPECT_TRUE(ends_well_with_a_liar(std::span(each).first(kBeforeLies)));
  }
  EXPECT_GT(found, std::ssize(seeds) / 2);
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sparsesync::fuzz
