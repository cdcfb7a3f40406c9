// Recorded workers: the transport suite through a recording, records that agree with the actual
// traffic and with theory, and waits for a turn that always end.
#include "engine/planner/calibration/recording.h"

#include <algorithm>
#include <cmath>

#include "tests/support/gradients.h"
#include "tests/support/transport_suite.h"

namespace sparsesync::testing {
namespace {

/// Returns workers of one process that each record a step for the whole test body.
WorkersUnderTest recorded_workers() {
  WorkersUnderTest workers = local_workers("recorded", {});
  const auto run = workers.run;
  workers.run = [run](int size, const WorkersUnderTest::Body& body) {
    // Bodies also wait for each other outside the transport, so each worker needs a turn.
    Recording recording(size, size);
    return run(size, [&](std::unique_ptr<Transport>& transport) {
      transport = recording.wrap(std::move(transport));
      recording.begin_step(transport->rank(), soon());
      body(transport);
    });
  };
  return workers;
}

INSTANTIATE_TEST_SUITE_P(recording, TransportSuite, ::testing::Values(recorded_workers()),
                         [](const auto& each) { return each.param.name; });

struct RecordedSession {
  std::vector<RecordedStep> steps;
  std::vector<std::vector<TransportCounters>> counters;  // additions per step: [step][worker]
};

/// Records steps of one bucket of f32 rows. Each worker touches `rows` rows.
/// @param adapts  whether to adapt after each step
RecordedSession recorded_session(const std::string& scheme, int size, const TensorSpec& tensor,
                                 Index rows, int steps, bool adapts = false) {
  LocalNetwork network(size);
  Recording recording(size);
  RecordedSession recorded;
  recorded.counters.assign(static_cast<std::size_t>(steps),
                           std::vector<TransportCounters>(static_cast<std::size_t>(size)));
  expect_no_errors(run_transports(network, size, [&](std::unique_ptr<Transport>& transport) {
    const Rank rank = transport->rank();
    HostMemory memory;
    Session session(recording.wrap(std::move(transport)), memory, {kDeadline, 1});
    const BucketId bucket = session.register_bucket({"b", {tensor}, scheme, Reduction::sum, 1});
    Random random(seed() + static_cast<std::uint64_t>(rank.value));
    for (int step = 0; step < steps; ++step) {
      const OwnedGradient gradient =
          random_gradient(random, tensor, distinct_rows(random, tensor.rows, rows));
      session.barrier();
      const TransportCounters before = session.counters();
      recording.begin_step(rank, soon());
      session.synchronize(bucket, std::array{gradient.view()});
      recording.end_step(rank);
      recorded.counters[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank.value)] =
          session.counters() - before;
      if (adapts) session.adapt(bucket);
    }
    session.barrier();
  }));
  recorded.steps = recording.take_steps();
  return recorded;
}

/// Returns the step without CPU time.
RecordedStep without_computing(RecordedStep step) {
  for (std::vector<RecordedEvent>& events : step.workers) {
    for (RecordedEvent& event : events) event.seconds = 0;
  }
  return step;
}

constexpr LocalLink kLink{200e6, 1e-3};

double on_link(std::int64_t bytes) {
  return static_cast<double>(bytes) * 8 / *kLink.rate_bps;
}

TEST(Recording, contains_traffic_and_computation) {
  for (const char* scheme : {"balanced", "balanced_hash", "dense_ring", "all_gather"}) {
    for (const int size : {1, 2, 5}) {
      const RecordedSession recorded =
          recorded_session(scheme, size, {"t", 5000, 16, DType::f32}, 300, 3);
      ASSERT_EQ(recorded.steps.size(), 3U);
      for (std::size_t step = 0; step < 3; ++step) {
        const auto& workers = recorded.steps[step].workers;
        ASSERT_EQ(workers.size(), static_cast<std::size_t>(size));
        for (std::size_t worker = 0; worker < workers.size(); ++worker) {
          const RecordedTraffic traffic = traffic_of(workers[worker]);
          const TransportCounters& counted = recorded.counters[step][worker];
          EXPECT_EQ(traffic.bytes_sent, counted.bytes_sent) << scheme;
          EXPECT_EQ(traffic.messages_sent, counted.messages_sent) << scheme;
          EXPECT_EQ(traffic.messages_received, counted.messages_received) << scheme;
          EXPECT_GT(traffic.compute_seconds, 0) << scheme;
          EXPECT_LT(traffic.compute_seconds, 10) << scheme;
        }
        EXPECT_GT(replayed_seconds(recorded.steps[step], {}), 0);
      }
    }
  }
}

TEST(Recording, a_ring_takes_the_theoretical_time) {
  for (const int size : {2, 3, 8}) {
    // Chunks of equal size.
    const RecordedSession dense =
        recorded_session("dense_ring", size, {"t", 4800, 7, DType::f32}, 300, 1);
    const std::int64_t chunk = kHeaderBytes + 4800 * 7 * 4 / size;
    EXPECT_NEAR(replayed_seconds(without_computing(dense.steps[0]), kLink),
                2 * (size - 1) * (kLink.latency_s + on_link(chunk)), 1e-9)
        << size;
    // Messages of equal size.
    const RecordedSession rows =
        recorded_session("all_gather", size, {"t", 5000, 16, DType::f32}, 300, 1);
    const std::int64_t message = rows.counters[0][0].bytes_sent / (size - 1);
    EXPECT_NEAR(replayed_seconds(without_computing(rows.steps[0]), kLink),
                (size - 1) * (kLink.latency_s + on_link(message)), 1e-9)
        << size;
  }
}

TEST(Recording, two_balanced_workers_take_the_theoretical_time) {
  const RecordedSession recorded =
      recorded_session("balanced", 2, {"t", 50'000, 16, DType::f32}, 3000, 1);
  const RecordedStep step = without_computing(recorded.steps[0]);
  // Each worker sends one message in each phase, and both read as soon as they have posted.
  std::array<std::array<double, 2>, 2> bytes{};  // [phase][worker]
  for (std::size_t worker = 0; worker < 2; ++worker) {
    std::size_t phase = 0;
    for (const RecordedEvent& event : step.workers[worker]) {
      if (event.kind == RecordedEvent::Kind::send) bytes[phase++][worker] = on_link(event.bytes);
    }
    ASSERT_EQ(phase, 2U);
  }
  std::array<double, 2> begin{};
  for (const std::array<double, 2>& phase : bytes) {
    std::array<double, 2> end{};
    const double both = std::max(begin[0], begin[1]);  // a sender waits for its reader
    for (std::size_t worker = 0; worker < 2; ++worker) {
      const double arrival = begin[1 - worker] + kLink.latency_s + phase[1 - worker];
      end[worker] = std::max({arrival, begin[worker] + phase[worker], both});
    }
    begin = end;
  }
  const std::vector<double> ends = replay(step, kLink);
  EXPECT_NEAR(ends[0], begin[0], 1e-9);
  EXPECT_NEAR(ends[1], begin[1], 1e-9);
}

TEST(Recording, balanced_fills_its_links) {
  const RecordedSession recorded =
      recorded_session("balanced", 8, {"t", 50'000, 16, DType::f32}, 3000, 2);
  for (std::size_t step = 0; step < 2; ++step) {
    std::int64_t busiest = 0;
    for (const TransportCounters& counted : recorded.counters[step]) {
      busiest = std::max({busiest, counted.bytes_sent, counted.bytes_received});
    }
    const double least = on_link(busiest) + 2 * kLink.latency_s;
    const double seconds = replayed_seconds(without_computing(recorded.steps[step]), kLink);
    EXPECT_GE(seconds, least * (1 - 1e-9));
    EXPECT_LE(seconds, least * 1.1);
  }
}

/// Groups are numbered in posting order: the push, then the pull. A pull in two pieces has one
/// group for indices and one for values.
TEST(Recording, a_large_pull_is_sorted_while_its_values_are_in_flight) {
  using Kind = RecordedEvent::Kind;
  constexpr int kSize = 8;
  const RecordedSession recorded =
      recorded_session("balanced", kSize, {"t", 50'000, 64, DType::f32}, 1000, 2, true);
  RecordedStep whole = without_computing(recorded.steps[0]);
  RecordedStep in_pieces = without_computing(recorded.steps[1]);
  const double whole_seconds = replayed_seconds(whole, kLink);
  const double seconds = replayed_seconds(in_pieces, kLink);
  double seconds_of_values = 0;
  for (std::vector<RecordedEvent>& events : in_pieces.workers) {
    std::array<std::vector<std::size_t>, 3> sends;
    std::array<std::vector<std::size_t>, 3> takes;
    std::int64_t values = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const auto group = static_cast<std::size_t>(events[i].group);
      if (events[i].kind == Kind::send) sends.at(group).push_back(i);
      if (events[i].kind == Kind::take) takes.at(group).push_back(i);
      if (events[i].kind == Kind::send && group == 2) values += events[i].bytes;
    }
    for (std::size_t group = 0; group < 3; ++group) {
      ASSERT_EQ(sends.at(group).size(), std::size_t{kSize - 1});
      ASSERT_EQ(takes.at(group).size(), std::size_t{kSize - 1});
    }
    EXPECT_LT(sends[1].back(), sends[2].front());
    EXPECT_LT(sends[2].back(), takes[1].front());
    EXPECT_LT(takes[1].back(), takes[2].front());
    seconds_of_values = on_link(values);
    // Add work that starts when all indices have arrived.
    events[takes[1].back()].seconds = seconds_of_values / 2;
  }
  // Add the same work after the complete message has arrived.
  for (std::vector<RecordedEvent>& events : whole.workers) {
    for (const RecordedEvent& event : events) EXPECT_LT(event.group, 2);
    events.push_back({Kind::compute, 0, 0, 0, seconds_of_values / 2});
  }
  EXPECT_NEAR(replayed_seconds(whole, kLink), whole_seconds + seconds_of_values / 2, 1e-9);
  EXPECT_NEAR(replayed_seconds(in_pieces, kLink), seconds, 1e-9);
}

TEST(Recording, messages_outside_of_a_step_are_not_recorded) {
  LocalNetwork network(2);
  Recording recording(2);
  expect_no_errors(run_transports(network, 2, [&](std::unique_ptr<Transport>& transport) {
    const Rank rank = transport->rank();
    transport = recording.wrap(std::move(transport));
    HostMemory memory;
    const Context context(memory);
    exchange_all(*transport, 0, 10);
    recording.begin_step(rank, soon());
    exchange_all(*transport, 1, 10);
    recording.end_step(rank);
    exchange_all(*transport, 2, 10);
    // A step that is never ended is not recorded.
    recording.begin_step(rank, soon());
    exchange_all(*transport, 3, 10);
  }));
  const std::vector<RecordedStep> steps = recording.take_steps();
  ASSERT_EQ(steps.size(), 1U);
  const RecordedTraffic traffic = traffic_of(steps[0].workers[0]);
  EXPECT_EQ(traffic.messages_sent, 1);
  EXPECT_EQ(traffic.bytes_sent, 32 + static_cast<std::int64_t>(payload_of(0, 1, 1, 10).size()));
  EXPECT_TRUE(recording.take_steps().empty());
}

TEST(Recording, waits_for_a_turn_end_at_the_deadline) {
  Recording recording(2);
  recording.begin_step(Rank{1}, soon());
  try {
    recording.begin_step(Rank{0}, Clock::now() + std::chrono::milliseconds(20));
    FAIL() << "got a turn, although there is only one";
  } catch (const DeadlineError& error) {
    EXPECT_NE(std::string(error.what()).find("worker 1"), std::string::npos) << error.what();
  }
  recording.end_step(Rank{1});
  recording.begin_step(Rank{0}, soon());
}

TEST(Recording, an_abort_ends_waits_for_a_turn) {
  LocalNetwork network(2);
  Recording recording(2);
  std::atomic<bool> holds = false;
  const auto errors = run_transports(network, 2, [&](std::unique_ptr<Transport>& transport) {
    const Rank rank = transport->rank();
    transport = recording.wrap(std::move(transport));
    HostMemory memory;
    const Context context(memory);
    if (rank == Rank{0}) {
      recording.begin_step(rank, soon());
      holds = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      transport->abort("no more");
      // This worker keeps its turn. The other one must continue nevertheless.
    } else {
      while (!holds) std::this_thread::yield();
      recording.begin_step(rank, soon());
    }
    exchange_all(*transport, 0, 10);
  });
  EXPECT_TRUE(is<AbortedError>(errors[0])) << text_of(errors[0]);
  EXPECT_TRUE(is<AbortedError>(errors[1])) << text_of(errors[1]);
}

TEST(Recording, a_worker_that_leaves_in_a_step_is_lost_and_returns_its_turn) {
  LocalNetwork network(3);
  Recording recording(3);
  const auto errors = run_transports(network, 3, [&](std::unique_ptr<Transport>& transport) {
    const Rank rank = transport->rank();
    transport = recording.wrap(std::move(transport));
    recording.begin_step(rank, soon());
    if (rank == Rank{2}) return;  // leaves while it has a turn
    HostMemory memory;
    const Context context(memory);
    exchange_all(*transport, 0, 10);
  });
  EXPECT_EQ(text_of(errors[2]), "");
  for (const std::size_t survivor : {0U, 1U}) {
    EXPECT_TRUE(is<PeerLostError>(errors[survivor])) << text_of(errors[survivor]);
  }
}

TEST(Recording, a_restarted_step_discards_the_failed_one) {
  Recording recording(1);
  recording.begin_step(Rank{0}, soon());
  recording.begin_step(Rank{0}, Clock::now() + std::chrono::milliseconds(20));
  recording.end_step(Rank{0});
  EXPECT_THROW(recording.end_step(Rank{0}), ContractError);
  EXPECT_EQ(recording.take_steps().size(), 1U);
}

}  // namespace
}  // namespace sparsesync::testing
