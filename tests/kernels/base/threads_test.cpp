// Threads: every part runs once, the division does not depend on the number of threads, and
// exceptions reach the caller.
#include "kernels/base/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparsesync/errors.h"
#include "sparsesync/memory.h"
#include "tests/support/flush_to_zero.h"

namespace sparsesync {
namespace {

TEST(EvenRanges, CoverEverythingInOrderAndEvenly) {
  for (const Index size : {Index{0}, Index{1}, Index{2}, Index{7}, Index{64}, Index{1001},
                           Index{1} << 40, std::numeric_limits<Index>::max()}) {
    for (const int parts : {1, 2, 3, 8, 100}) {
      Index end = 0;
      for (int part = 0; part < parts; ++part) {
        const IndexRange range = EvenRanges(size, parts).range(part);
        EXPECT_EQ(range.begin, end);
        EXPECT_GE(range.size(), size / parts);
        EXPECT_LE(range.size() - size / parts, 1);
        end = range.end;
      }
      EXPECT_EQ(end, size);
    }
  }
}

TEST(PartCount, IsAtMostTheThreadCountAndKeepsTheGrain) {
  HostMemory memory;
  Threads four(4);
  const Context alone(memory);
  const Context team(memory, four);
  EXPECT_EQ(thread_count(alone), 1);
  EXPECT_EQ(thread_count(team), 4);
  EXPECT_EQ(part_count(alone, 1'000'000, 1), 1);
  EXPECT_EQ(part_count(team, 0, 10), 1);
  EXPECT_EQ(part_count(team, 19, 10), 1);
  EXPECT_EQ(part_count(team, 20, 10), 2);
  EXPECT_EQ(part_count(team, 39, 10), 3);
  EXPECT_EQ(part_count(team, 1'000'000, 10), 4);
}

TEST(Threads, RunEveryPartOnce) {
  for (int count = 1; count <= 8; ++count) {
    Threads threads(count);
    ASSERT_EQ(threads.count(), count);
    for (const int parts : {0, 1, 2, 3, 8, 17, 1000}) {
      std::vector<int> calls(static_cast<std::size_t>(parts));
      threads.run(parts, [&](int part) { ++calls[static_cast<std::size_t>(part)]; });
      EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(parts), 1));
    }
  }
}

TEST(Threads, RunConcurrently) {
  // Each part waits for the other, so one thread alone would never finish. Bodies may normally not
  // wait for each other; this test may, because it knows that the pool is idle.
  Threads threads(2);
  std::atomic<int> arrived = 0;
  std::array<std::thread::id, 2> who;
  threads.run(2, [&](int part) {
    who[static_cast<std::size_t>(part)] = std::this_thread::get_id();
    ++arrived;
    while (arrived != 2) std::this_thread::yield();
  });
  EXPECT_EQ(who[0], std::this_thread::get_id());
  EXPECT_NE(who[0], who[1]);
}

TEST(Threads, SeeTheCallersWritesAndTheCallerSeesTheirs) {
  Threads threads(3);
  std::vector<int> numbers(3);
  for (int round = 1; round <= 2000; ++round) {
    const int given = round * 3;
    threads.run(3, [&](int part) { numbers[static_cast<std::size_t>(part)] += given + part; });
  }
  EXPECT_EQ(numbers, (std::vector<int>{6'003'000, 6'005'000, 6'007'000}));
}

TEST(Threads, RethrowTheExceptionOfTheLowestPart) {
  for (int count = 1; count <= 8; ++count) {
    Threads threads(count);
    for (const int lowest : {0, 1, 5, 11}) {
      try {
        threads.run(12, [&](int part) {
          if (part >= lowest) throw std::runtime_error(std::to_string(part));
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), std::to_string(lowest));
      }
      // The pool is still usable.
      std::atomic<int> calls = 0;
      threads.run(12, [&](int) { ++calls; });
      EXPECT_EQ(calls, 12);
    }
  }
}

TEST(Threads, ThatAreBusyLeaveTheWorkToTheCaller) {
  Threads threads(4);
  std::array<std::array<int, 9>, 4> calls{};
  std::atomic<int> elsewhere = 0;
  threads.run(4, [&](int part) {
    const auto caller = std::this_thread::get_id();
    threads.run(9, [&](int inner) {
      ++calls[static_cast<std::size_t>(part)][static_cast<std::size_t>(inner)];
      if (std::this_thread::get_id() != caller) ++elsewhere;
    });
  });
  EXPECT_EQ(elsewhere, 0);
  for (const auto& row : calls) {
    for (const int call : row) EXPECT_EQ(call, 1);
  }
  // An exception of a nested call passes through both calls.
  EXPECT_THROW(threads.run(4,
                           [&](int) {
                             threads.run(2, [&](int part) {
                               if (part == 1) throw std::runtime_error("inner");
                             });
                           }),
               std::runtime_error);
}

TEST(Threads, MayServeSeveralCallers) {
  Threads threads(2);
  std::array<std::atomic<int>, 2> calls{};
  const auto work = [&](std::size_t caller) {
    for (int round = 0; round < 500; ++round) threads.run(3, [&](int) { ++calls[caller]; });
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(calls[0], 1500);
  EXPECT_EQ(calls[1], 1500);
}

TEST(Threads, NeedAtLeastOne) {
  EXPECT_THROW(Threads(0), ContractError);
  EXPECT_THROW(Threads(-1), ContractError);
}

TEST(ParallelFor, DividesTheSameForEveryThreadCount) {
  HostMemory memory;
  for (int count = 1; count <= 8; ++count) {
    Threads threads(count);
    for (const Index size : {0, 1, 9, 10, 100, 1001}) {
      const Context context(memory, threads);
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(size));
      std::atomic<int> ranges = 0;
      parallel_for(context, size, 10, [&](IndexRange range) {
        ++ranges;
        EXPECT_TRUE(range.size() >= 10 || range.size() == size);
        for (Index i = range.begin; i < range.end; ++i) ++calls[static_cast<std::size_t>(i)];
      });
      EXPECT_EQ(ranges, part_count(context, size, 10));
      for (const auto& call : calls) EXPECT_EQ(call, 1);
    }
  }
}

TEST(ForEachPart, GivesEachPartItsRange) {
  HostMemory memory;
  Threads threads(3);
  for (const Context& context : {Context(memory), Context(memory, threads)}) {
    std::vector<IndexRange> ranges(5);
    for_each_part(context, 102, 5, [&](int part, IndexRange range) {
      ranges[static_cast<std::size_t>(part)] = range;
    });
    EXPECT_EQ(ranges, (std::vector<IndexRange>{{0, 21}, {21, 42}, {42, 62}, {62, 82}, {82, 102}}));
  }
}

TEST(Threads, ComputeInTheDefaultFloatingPointModes) {
  if (!testing::kHasFlushToZero) GTEST_SKIP() << "this processor has no flush-to-zero mode";
  std::optional<Threads> threads;
  {
    const testing::FlushToZero own;
    threads.emplace(2);
  }
  const volatile float least = std::numeric_limits<float>::denorm_min();
  std::array<float, 2> sums{};
  threads->run(2, [&](int part) { sums.at(static_cast<std::size_t>(part)) = least + least; });
  EXPECT_EQ(sums, (std::array{2 * least, 2 * least}));
}

TEST(Threads, ThatCannotBeStartedThrowATypedError) {
  pthread_attr_t defaults;
  ASSERT_EQ(pthread_getattr_default_np(&defaults), 0);
  pthread_attr_t large = defaults;
  ASSERT_EQ(pthread_attr_setstacksize(&large, std::size_t{1} << 62U), 0);
  ASSERT_EQ(pthread_setattr_default_np(&large), 0);
  std::string text;
  try {
    const Threads threads(3);
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(pthread_setattr_default_np(&defaults), 0);
  EXPECT_NE(text.find("a kernel thread could not be started: "), std::string::npos) << text;
  EXPECT_NE(text.find("ulimit -u"), std::string::npos) << text;
}

}  // namespace
}  // namespace sparsesync
