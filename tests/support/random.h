// Random numbers for tests. They are the same on every machine, and every failure prints the seed
// that reproduces it.
//
// The seed is SPARSESYNC_SEED if that is set, otherwise a constant. A program that includes this
// header prints the seed when it starts and for every test that fails. Inside namespace sparsesync,
// use ::testing for GoogleTest's namespace.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "kernels/base/bits.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"

namespace sparsesync::testing {

/// Returns the seed of this run.
/// @throws InputError if SPARSESYNC_SEED is not an integer
inline std::uint64_t seed() {
  constexpr std::uint64_t kDefault = 20'240'607;
  const char* given = std::getenv("SPARSESYNC_SEED");  // NOLINT(concurrency-mt-unsafe): one thread
  if (given == nullptr) return kDefault;
  const std::string_view text(given);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError("SPARSESYNC_SEED is not a whole number below 2^64: '" + std::string(text) +
                     "'");
  }
  return value;
}

/// A counter-based random number generator. Each seed gives another sequence.
class Random {
 public:
  explicit Random(std::uint64_t seed) : key_(mix64(seed)) {}

  std::uint64_t next() { return mix64(key_ + counter_++); }

  /// Returns an integer in [0, bound). bound >= 1.
  std::int64_t below(std::int64_t bound) {
    SPARSESYNC_EXPECT(bound, >=, std::int64_t{1});
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

  /// Returns a number in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1p-53; }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

/// Draws `count` distinct rows of [0, rows), in increasing order. Every set is equally likely (R.
/// W. Floyd's algorithm: Bentley, "Programming pearls", CACM 30(9), 1987).
/// @pre 0 <= count <= rows
inline std::vector<Index> distinct_rows(Random& random, Index rows, Index count) {
  SPARSESYNC_EXPECT(count, <=, rows);
  std::unordered_set<Index> taken;
  for (Index last = rows - count; last < rows; ++last) {
    if (!taken.insert(random.below(last + 1)).second) taken.insert(last);
  }
  std::vector<Index> sorted(taken.begin(), taken.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

namespace detail {

class SeedPrinter : public ::testing::EmptyTestEventListener {
 public:
  void OnTestProgramStart(const ::testing::UnitTest&) override { print("this run"); }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Failed()) print("to repeat the failure");
  }

 private:
  static void print(const char* what) {
    std::printf("SPARSESYNC_SEED=%llu  # %s\n", static_cast<unsigned long long>(seed()), what);
    std::fflush(stdout);
  }
};

inline bool print_seed() {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedPrinter);  // the listeners own it
  return true;
}
inline const bool kPrintsSeed = print_seed();

}  // namespace detail
}  // namespace sparsesync::testing
