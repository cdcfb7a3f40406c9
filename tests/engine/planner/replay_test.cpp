// The virtual clock: times with a closed form, contention at both ends, arrivals in virtual order,
// and records that cannot finish.
#include "engine/planner/calibration/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/random.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using Kind = RecordedEvent::Kind;
using Events = std::vector<RecordedEvent>;

RecordedEvent compute(double seconds) {
  return {Kind::compute, 0, 0, 0, seconds};
}
RecordedEvent send(int group, int to, std::int64_t bytes) {
  return {Kind::send, group, to, bytes, 0};
}
RecordedEvent receive(int group, int from) {
  return {Kind::receive, group, from, 0, 0};
}
RecordedEvent take(int group, int from, double seconds = 0) {
  return {Kind::take, group, from, 0, seconds};
}
RecordedEvent finish(int group) {
  return {Kind::finish, group, 0, 0, 0};
}

constexpr double kRate = 8e6;  // one microsecond per byte
constexpr LocalLink kLink{kRate, 0.01};
constexpr double kByte = 8 / kRate;

void expect_ends(const RecordedStep& step, const LocalLink& link, const std::vector<double>& ends) {
  const std::vector<double> seen = replay(step, link);
  ASSERT_EQ(seen.size(), ends.size());
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_NEAR(seen[rank], ends[rank], 1e-12 + 1e-9 * ends[rank]) << "worker " << rank;
  }
}

TEST(Replay, OneMessageTakesItsLatencyAndTheTimeOfItsBytes) {
  for (const std::int64_t bytes : {1, 32, 16'384, 16'385, 1'000'000}) {
    const RecordedStep step{{{send(0, 1, bytes), finish(0)}, {receive(0, 0), take(0, 0)}}};
    const double on_link = static_cast<double>(bytes) * kByte;
    expect_ends(step, kLink, {on_link, 0.01 + on_link});
    expect_ends(step, {std::nullopt, 0.01}, {0, 0.01});
    expect_ends(step, {}, {0, 0});
  }
}

TEST(Replay, ComputingTakesTimeAndOverlapsWithTheNetwork) {
  const RecordedStep step{
      {{compute(0.5), send(0, 1, 100'000), compute(1), finish(0), compute(0.25)},
       {receive(0, 0), compute(2), take(0, 0, 0.125), compute(0.0625)}}};
  // The message leaves at 0.5 and arrives at 0.61. Both workers compute meanwhile, and the message
  // is read at 2.
  expect_ends(step, kLink, {2.25, 2.1875});
  const RecordedStep idle{{{compute(0.5), send(0, 1, 100'000), finish(0)},
                           {receive(0, 0), take(0, 0, 0.125), compute(0.0625)}}};
  expect_ends(idle, kLink, {0.6, 0.61 + 0.1875});
}

TEST(Replay, SendersShareTheReceiversLink) {
  // Each sender has 1,600,000 bytes. Chunks alternate, so both senders finish together, except for
  // one chunk.
  const std::int64_t bytes = 16'384 * 100;
  const RecordedStep step{{{receive(0, 1), receive(0, 2), take(0, 1), take(0, 2)},
                           {send(0, 0, bytes), finish(0)},
                           {send(0, 0, bytes), finish(0)}}};
  const double one = static_cast<double>(bytes) * kByte;
  expect_ends(step, kLink, {0.01 + 2 * one, one, one});
  // The first message is complete one chunk before the second, and not after half the time.
  RecordedStep handled = step;
  handled.workers[0] = {receive(0, 1), receive(0, 2), take(0, 1), compute(100), take(0, 2)};
  const double chunk = 16'384 * kByte;
  EXPECT_NEAR(replay(handled, kLink)[0], 0.01 + 2 * one - chunk + 100, 1e-9);
}

TEST(Replay, ReceiversShareTheSendersLink) {
  const RecordedStep step{{{send(0, 1, 1000), send(0, 2, 3000), finish(0)},
                           {receive(0, 0), take(0, 0)},
                           {receive(0, 0), take(0, 0)}}};
  expect_ends(step, kLink, {4000 * kByte, 0.01 + 1000 * kByte, 0.01 + 4000 * kByte});
}

RecordedStep ring(int size, std::int64_t bytes, double handling) {
  RecordedStep step;
  for (int rank = 0; rank < size; ++rank) {
    Events& events = step.workers.emplace_back();
    for (int turn = 0; turn + 1 < size; ++turn) {
      const int left = (rank + size - 1) % size;
      events.insert(events.end(), {send(turn, (rank + 1) % size, bytes), receive(turn, left),
                                   take(turn, left, handling), finish(turn)});
    }
  }
  return step;
}

TEST(Replay, ARingTakesTheTimeOfAllSteps) {
  for (const int size : {2, 3, 8, 64}) {
    const std::int64_t bytes = 50'000;
    const double turn = 0.01 + static_cast<double>(bytes) * kByte + 0.002;
    expect_ends(ring(size, bytes, 0.002), kLink,
                std::vector<double>(static_cast<std::size_t>(size), (size - 1) * turn));
  }
}

RecordedStep all_to_all(int size, std::int64_t bytes) {
  RecordedStep step;
  for (int rank = 0; rank < size; ++rank) {
    Events& events = step.workers.emplace_back();
    for (int i = 1; i < size; ++i) events.push_back(send(0, (rank + i) % size, bytes));
    for (int i = 1; i < size; ++i) events.push_back(receive(0, (rank + i) % size));
    for (int i = 1; i < size; ++i) events.push_back(take(0, (rank + i) % size));
    events.push_back(finish(0));
  }
  return step;
}

TEST(Replay, AllToAllFillsEveryLinkInBothDirections) {
  // The i-th message of worker r goes to worker r + i. No two messages are sent to the same worker
  // at the same time.
  for (const int size : {2, 5, 16}) {
    const std::int64_t bytes = 40'000;
    expect_ends(all_to_all(size, bytes), kLink,
                std::vector<double>(static_cast<std::size_t>(size),
                                    0.01 + (size - 1) * static_cast<double>(bytes) * kByte));
  }
}

TEST(Replay, TheFirstArrivalOnTheseLinksIsHandledFirst) {
  // In the recorded run, the message of worker 2 arrived first and took long to handle. In the
  // replay, the message of worker 1 arrives first. Its handling is short and overlaps with the
  // other transfer.
  const RecordedStep step{{{receive(0, 1), receive(0, 2), take(0, 2, 5), take(0, 1, 0.5)},
                           {send(0, 0, 1000), finish(0)},
                           {compute(10), send(0, 0, 1000), finish(0)}}};
  expect_ends(step, {}, {15, 0, 10});
  // The reverse case, which depends only on message sizes.
  const RecordedStep sizes{{{receive(0, 1), receive(0, 2), take(0, 1, 1), take(0, 2, 3)},
                            {send(0, 0, 1'000'000), finish(0)},
                            {send(0, 0, 100), finish(0)}}};
  const double all = 0.01 + 1'000'100 * kByte;
  EXPECT_NEAR(replay(sizes, kLink)[0], 0.01 + 16'384 * kByte + 100 * kByte + 3 + 1, 1e-9);
  EXPECT_LT(all, 3);
}

TEST(Replay, MessagesOfOneWorkerStayInOrder) {
  // Two groups in flight at once, received in the opposite order.
  const RecordedStep step{{{send(0, 1, 1000), send(1, 1, 2000), finish(1), finish(0)},
                           {receive(0, 0), receive(1, 0), take(1, 0, 0.5), take(0, 0, 0.25)}}};
  expect_ends(step, kLink, {3000 * kByte, 0.01 + 3000 * kByte + 0.75});
}

TEST(Replay, ASenderWaitsForItsReader) {
  const RecordedStep step{{{send(0, 1, 1000), finish(0)}, {compute(7), receive(0, 0), take(0, 0)}}};
  expect_ends(step, kLink, {7, 7});
  // A posted receive is read as soon as its worker waits for anything.
  const RecordedStep other{{{send(0, 1, 1000), finish(0), compute(2), send(1, 1, 1000), finish(1)},
                            {receive(0, 0), receive(1, 0), take(1, 0), take(0, 0)}}};
  expect_ends(other, kLink, {2 + 2000 * kByte, 2.01 + 2000 * kByte});
}

TEST(Replay, NoWorkersAndNoEventsTakeNoTime) {
  EXPECT_EQ(replayed_seconds({}, kLink), 0);
  expect_ends({{{}, {}, {}}}, kLink, {0, 0, 0});
}

/// Generates a step in which workers repeatedly send messages of random sizes to all others and
/// handle them.
RecordedStep random_step(testing::Random& random, int size) {
  RecordedStep step;
  step.workers.resize(static_cast<std::size_t>(size));
  for (int group = 0; group < 3; ++group) {
    for (int rank = 0; rank < size; ++rank) {
      Events& events = step.workers[static_cast<std::size_t>(rank)];
      events.push_back(compute(1e-6 * static_cast<double>(random.below(1000))));
      for (int i = 1; i < size; ++i) {
        events.push_back(send(group, (rank + i) % size, 32 + random.below(100'000)));
        events.push_back(receive(group, (rank + size - i) % size));
      }
      for (int i = 1; i < size; ++i) {
        const double seconds = 1e-6 * static_cast<double>(random.below(1000));
        events.push_back(take(group, (rank + i) % size, seconds));
      }
      events.push_back(finish(group));
    }
  }
  return step;
}

TEST(Replay, TheSameRecordGivesTheSameBits) {
  testing::Random random(testing::seed());
  const RecordedStep step = random_step(random, 9);
  for (const LocalLink& link : {kLink, LocalLink{}, LocalLink{25e9, 1e-5}}) {
    EXPECT_EQ(replay(step, link), replay(step, link));
  }
}

TEST(Replay, IsNeverFasterThanTheBusiestLinkOrWorker) {
  testing::Random random(testing::seed());
  for (int round = 0; round < 30; ++round) {
    const int size = 2 + static_cast<int>(random.below(8));
    const RecordedStep step = random_step(random, size);
    const LocalLink link{1e6 * static_cast<double>(1 + random.below(10'000)), 1e-4};
    std::vector<std::int64_t> received(static_cast<std::size_t>(size));
    double least = 0;
    double all_work = 0;
    std::int64_t all_bytes = 0;
    for (const Events& events : step.workers) {
      const RecordedTraffic traffic = traffic_of(events);
      EXPECT_EQ(traffic.messages_sent, 3 * (size - 1));
      EXPECT_EQ(traffic.messages_received, 3 * (size - 1));
      least = std::max({least, traffic.compute_seconds,
                        static_cast<double>(traffic.bytes_sent) * 8 / *link.rate_bps});
      all_work += traffic.compute_seconds;
      all_bytes += traffic.bytes_sent;
      for (const RecordedEvent& event : events) {
        if (event.kind == Kind::send) received[static_cast<std::size_t>(event.peer)] += event.bytes;
      }
    }
    for (const std::int64_t bytes : received) {
      least = std::max(least, static_cast<double>(bytes) * 8 / *link.rate_bps);
    }
    const double seconds = replayed_seconds(step, link);
    EXPECT_GE(seconds, least * (1 - 1e-12));
    // Never slower than a sequential execution, either.
    EXPECT_LE(seconds, all_work + 2 * static_cast<double>(all_bytes) * 8 / *link.rate_bps +
                           3 * size * link.latency_s);
    // A faster link gives a shorter time. Another order of chunks may cost a little.
    EXPECT_LE(replayed_seconds(step, {*link.rate_bps * 2, link.latency_s}), seconds * 1.05);
  }
}

TEST(Replay, ARecordThatCannotFinishIsAnError) {
  expect_error<InputError>(
      [] {
        replay({{{receive(0, 1), take(0, 1)}, {}}}, kLink);
      },
      {"cannot end", "worker 0 waits for a message", "worker 1"});
  expect_error<InputError>(
      [] {
        replay({{{send(3, 1, 10), finish(3)}, {}}}, kLink);
      },
      {"cannot end", "worker 0 waits for the readers", "group 3"});
  // Each worker waits for the other one.
  expect_error<InputError>(
      [] {
        replay({{{receive(0, 1), take(0, 1), send(1, 1, 10)},
                 {receive(0, 0), take(0, 0), send(1, 0, 10)}}},
               {});
      },
      {"cannot end"});
}

TEST(Replay, AnInvalidRecordIsAnError) {
  const auto refused = [](const Events& events, const std::vector<std::string>& parts) {
    expect_error<InputError>([&] { replay({{events, {}}}, kLink); }, parts);
  };
  refused({compute(-1)}, {"worker 0", "-1 s"});
  refused({compute(std::nan(""))}, {"nan"});
  refused({send(0, 1, -5)}, {"-5 bytes"});
  refused({send(0, 2, 5)}, {"worker 2 of 2"});
  refused({send(0, 0, 5)}, {"worker 0 of 2"});
  refused({receive(0, -1)}, {"worker -1"});
  refused({take(0, 1)}, {"more messages", "receives"});
  expect_error<InputError>(
      [] {
        replay({{{receive(0, 1), receive(0, 2), take(0, 1), take(0, 1)},
                 {send(0, 0, 5)},
                 {send(0, 0, 5)}}},
               kLink);
      },
      {"does not take", "worker 2"});
}

TEST(Replay, AnInvalidLinkIsAnError) {
  const RecordedStep step = ring(3, 100, 0);
  for (const LocalLink& link : {LocalLink{0, 0}, LocalLink{-1, 0}, LocalLink{std::nan(""), 0},
                                LocalLink{1e9, -1}, LocalLink{1e9, std::nan("")}}) {
    EXPECT_THROW(replay(step, link), InputError);
  }
}

}  // namespace
}  // namespace sparsesync
