// The conformance suite of the Transport interface. A transport is tested by defining how the
// workers that it connects are run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "schemes/pattern.h"
#include "schemes/transport.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {

/// Runs each case with the workers of the transport under test.
class TransportSuite : public ::testing::TestWithParam<WorkersUnderTest> {
 protected:
  static std::vector<std::exception_ptr> run(int size, const WorkersUnderTest::Body& body) {
    return GetParam().run(size, body);
  }
  /// A counter through which workers communicate outside of the transport.
  static std::atomic<int>& counter() { return GetParam().counter(); }
  static void wait_for_counter(int value) {
    while (counter() < value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  /// Posts the receive of one message.
  static GroupId post_receive(Transport& transport, Rank from, ReceiveProvider& provider) {
    return transport.post(own_context(), {}, {}, std::array{Receive{from}}, provider);
  }
  /// Posts the send of one message.
  static GroupId post_send(Transport& transport, Rank to, const std::vector<std::byte>& data,
                           ReceiveProvider& unused) {
    const std::array sends{Send{to, data.data(), static_cast<std::int64_t>(data.size())}};
    return transport.post(own_context(), {}, sends, {}, unused);
  }

  /// Waits until sends are done, on a GPU, too. Their memory may be released afterwards.
  static void finish(Transport& transport, GroupId group, Clock::time_point until) {
    transport.finish(group, until);
    synchronize(own_context());
  }
};

/// Accepts every payload.
class Taker : public ReceiveProvider {
 public:
  explicit Taker(std::size_t receives) : payloads(receives) {}
  Taker(const Taker&) = delete;
  Taker& operator=(const Taker&) = delete;
  ~Taker() override { synchronize(own_context()); }  // payloads may still be arriving
  std::byte* provide(std::size_t receive, const Header& header) override {
    payloads[receive].resize(header.bytes);
    return payloads[receive].data();
  }
  std::vector<std::vector<std::byte>> payloads;
};

/// A message size that no transport buffers before the receiver asks for the message.
inline constexpr std::size_t kMoreThanIsUnderWay = 16 << 20;

inline Clock::time_point soon() {
  return Clock::now() + kDeadline;
}

/// Returns the message that worker `from` sends to worker `to` in a step. Size and contents differ
/// for each message.
inline std::vector<std::byte> payload_of(int from, int to, int step, std::size_t scale) {
  std::vector<std::byte> bytes(scale * static_cast<std::size_t>((from * 7 + to * 3 + step) % 11));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 31 + static_cast<std::size_t>(from * 5 + to + step)) & 0xFFU);
  }
  return bytes;
}

/// Runs one step in which every worker sends to every worker.
inline void exchange_all(Transport& transport, int step, std::size_t scale) {
  const int rank = transport.rank().value;
  std::vector<std::vector<std::byte>> outgoing;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const Rank peer : peers_after(transport.rank(), transport.size())) {
    outgoing.push_back(payload_of(rank, peer.value, step, scale));
    sends.push_back(
        {peer, outgoing.back().data(), static_cast<std::int64_t>(outgoing.back().size())});
    receives.push_back({peer});
  }
  Taker taker(receives.size());
  const Header header{1, 0, static_cast<std::uint64_t>(step), 42, 0};
  const GroupId group = transport.post(own_context(), header, sends, receives, taker);
  std::vector<int> seen(receives.size());
  while (const auto arrival = transport.next(group, soon())) {
    ++seen.at(arrival->receive);
    const int from = receives[arrival->receive].from.value;
    const std::vector<std::byte> expected = payload_of(from, rank, step, scale);
    ASSERT_EQ(arrival->payload.size(), expected.size());
    synchronize(own_context());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), arrival->payload.begin()));
    ASSERT_EQ(arrival->header.bytes, expected.size());
  }
  transport.finish(group, soon());
  synchronize(own_context());  // the sent memory is released afterwards
  for (const int times : seen) ASSERT_EQ(times, 1);
}

TEST_P(TransportSuite, every_worker_sends_to_every_worker) {
  for (const int size : {1, 2, 3, 4, 7}) {
    expect_no_errors(run(size, [&](std::unique_ptr<Transport>& transport) {
      EXPECT_EQ(transport->size(), size);
      for (int step = 0; step < 20; ++step) exchange_all(*transport, step, 1);
      for (int step = 20; step < 23; ++step) exchange_all(*transport, step, 10'007);
    }));
  }
}

TEST_P(TransportSuite, counters_count_payloads_and_headers) {
  constexpr int kSize = 3;
  expect_no_errors(run(kSize, [&](std::unique_ptr<Transport>& transport) {
    const int rank = transport->rank().value;
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (int step = 0; step < 4; ++step) {
      exchange_all(*transport, step, 100);
      for (const Rank peer : peers_after(Rank{rank}, kSize)) {
        sent += 32 + static_cast<std::int64_t>(payload_of(rank, peer.value, step, 100).size());
        received += 32 + static_cast<std::int64_t>(payload_of(peer.value, rank, step, 100).size());
      }
    }
    const TransportCounters counted = transport->counters();
    EXPECT_EQ(counted.bytes_sent, sent);
    EXPECT_EQ(counted.bytes_received, received);
    EXPECT_EQ(counted.messages_sent, 4 * (kSize - 1));
    EXPECT_EQ(counted.messages_received, 4 * (kSize - 1));
  }));
}

TEST_P(TransportSuite, a_send_uses_a_count_that_a_kernel_computes) {
  expect_no_errors(run(2, [&](std::unique_ptr<Transport>& transport) {
    std::vector<std::int64_t> computed{5};
    const std::vector<std::byte> data(8);
    const std::array sends{
        Send{Rank{1 - transport->rank().value}, data.data(), Count(computed.data())}};
    const std::array receives{Receive{Rank{1 - transport->rank().value}}};
    Taker taker(1);
    const GroupId group = transport->post(own_context(), {}, sends, receives, taker);
    const auto arrival = transport->next(group, soon());
    ASSERT_TRUE(arrival.has_value());
    EXPECT_EQ(arrival->payload.size(), 5U);
    EXPECT_FALSE(transport->next(group, soon()).has_value());
    finish(*transport, group, soon());
  }));
}

TEST_P(TransportSuite, several_groups_are_open_at_the_same_time) {
  expect_no_errors(run(3, [&](std::unique_ptr<Transport>& transport) {
    const int right = (transport->rank().value + 1) % 3;
    const int left = (transport->rank().value + 2) % 3;
    std::vector<GroupId> groups;
    std::vector<std::unique_ptr<Taker>> takers;
    std::vector<std::int32_t> values(4);
    for (std::int32_t step = 0; step < 4; ++step) {
      values.at(static_cast<std::size_t>(step)) = transport->rank().value * 100 + step;
      const std::array sends{
          Send{Rank{right},
               reinterpret_cast<const std::byte*>(&values.at(static_cast<std::size_t>(step))),
               std::int64_t{sizeof(std::int32_t)}}};
      const std::array receives{Receive{Rank{left}}};
      takers.push_back(std::make_unique<Taker>(1));
      groups.push_back(transport->post(own_context(),
                                       {1, 0, static_cast<std::uint64_t>(step), 0, 0}, sends,
                                       receives, *takers.back()));
    }
    // Waiting in reverse order must still return the message of each group.
    for (std::size_t step = 4; step-- > 0;) {
      const auto arrival = transport->next(groups[step], soon());
      ASSERT_TRUE(arrival.has_value());
      std::int32_t got = 0;
      synchronize(own_context());
      std::memcpy(&got, arrival->payload.data(), sizeof(got));
      EXPECT_EQ(got, left * 100 + static_cast<int>(step));
      finish(*transport, groups[step], soon());
    }
  }));
}

TEST_P(TransportSuite, messages_of_several_groups_match_in_any_order_of_arrival) {
  constexpr int kSize = 5;
  expect_no_errors(run(kSize, [&](std::unique_ptr<Transport>& transport) {
    const int rank = transport->rank().value;
    const std::vector<Rank> peers = peers_after(transport->rank(), kSize);
    std::vector<Receive> receives;
    for (const Rank peer : peers) receives.push_back({peer});
    for (int step = 0; step < 200; step += 2) {
      std::vector<std::vector<std::byte>> outgoing;
      std::vector<std::unique_ptr<Taker>> takers;
      std::vector<GroupId> groups;
      for (const int of_group : {step, step + 1}) {
        std::vector<Send> sends;
        for (const Rank peer : peers) {
          const auto& bytes = outgoing.emplace_back(payload_of(rank, peer.value, of_group, 300));
          sends.push_back({peer, bytes.data(), static_cast<std::int64_t>(bytes.size())});
        }
        takers.push_back(std::make_unique<Taker>(receives.size()));
        groups.push_back(transport->post(own_context(),
                                         {1, 0, static_cast<std::uint64_t>(of_group), 0, 0}, sends,
                                         receives, *takers.back()));
      }
      for (std::size_t group = 0; group < 2; ++group) {
        while (const auto arrival = transport->next(groups[group], soon())) {
          const std::vector<std::byte> expected =
              payload_of(peers[arrival->receive].value, rank, step + static_cast<int>(group), 300);
          ASSERT_EQ(arrival->payload.size(), expected.size());
          synchronize(own_context());
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), arrival->payload.begin()));
        }
      }
      for (const GroupId group : groups) finish(*transport, group, soon());
    }
  }));
}

TEST_P(TransportSuite, a_payload_can_be_discarded) {
  class Refuser : public ReceiveProvider {
   public:
    std::byte* provide(std::size_t, const Header& header) override {
      bytes = header.bytes;
      return nullptr;
    }
    std::uint64_t bytes = 0;
  };
  expect_no_errors(run(2, [&](std::unique_ptr<Transport>& transport) {
    const std::vector<std::byte> data(1000);
    const Rank peer{1 - transport->rank().value};
    const std::array sends{Send{peer, data.data(), std::int64_t{1000}}};
    const std::array receives{Receive{peer}};
    Refuser refuser;
    const GroupId group = transport->post(own_context(), {}, sends, receives, refuser);
    const auto arrival = transport->next(group, soon());
    ASSERT_TRUE(arrival.has_value());
    EXPECT_TRUE(arrival->payload.empty());
    EXPECT_EQ(refuser.bytes, 1000U);
    finish(*transport, group, soon());
    exchange_all(*transport, 1, 10);
  }));
}

TEST_P(TransportSuite, a_message_of_another_step_is_an_error) {
  const auto errors = run(2, [&](std::unique_ptr<Transport>& transport) {
    const Rank peer{1 - transport->rank().value};
    const std::array sends{Send{peer, nullptr, std::int64_t{0}}};
    const std::array receives{Receive{peer}};
    Taker taker(1);
    const auto sequence = static_cast<std::uint64_t>(transport->rank().value);
    const GroupId group =
        transport->post(own_context(), {1, 0, sequence, 9, 0}, sends, receives, taker);
    try {
      transport->next(group, soon());
    } catch (const ProtocolError& error) {
      transport->abort(error.what());
      throw;
    }
  });
  int protocol = 0;
  for (const auto& error : errors) {
    EXPECT_TRUE(is<ProtocolError>(error) || is<AbortedError>(error)) << text_of(error);
    if (is<ProtocolError>(error)) {
      ++protocol;
      EXPECT_NE(text_of(error).find("sequence"), std::string::npos) << text_of(error);
    }
  }
  EXPECT_GE(protocol, 1);
}

TEST_P(TransportSuite, a_silent_worker_causes_a_deadline_error_on_the_others) {
  const auto errors = run(3, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank().value == 1) {
      wait_for_counter(2);
      return;
    }
    Taker taker(1);
    const GroupId group = post_receive(*transport, Rank{1}, taker);
    try {
      transport->next(group, Clock::now() + std::chrono::milliseconds(100));
    } catch (...) {
      ++counter();
      throw;
    }
    ++counter();
  });
  EXPECT_TRUE(is<DeadlineError>(errors[0]));
  EXPECT_FALSE(errors[1]);
  EXPECT_TRUE(is<DeadlineError>(errors[2]));
  EXPECT_NE(text_of(errors[0]).find("worker 1"), std::string::npos) << text_of(errors[0]);
}

TEST_P(TransportSuite, a_send_that_is_not_received_causes_a_deadline_error) {
  const auto errors = run(2, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank().value == 1) {
      wait_for_counter(1);
      return;
    }
    const std::vector<std::byte> data(kMoreThanIsUnderWay);
    Taker taker(0);
    const GroupId group = post_send(*transport, Rank{1}, data, taker);
    try {
      finish(*transport, group, Clock::now() + std::chrono::milliseconds(100));
    } catch (...) {
      ++counter();
      throw;
    }
    ++counter();
  });
  EXPECT_TRUE(is<DeadlineError>(errors[0])) << text_of(errors[0]);
}

TEST_P(TransportSuite, a_worker_that_leaves_causes_a_peer_lost_error_on_all_others) {
  const auto errors = run(4, [&](std::unique_ptr<Transport>& transport) {
    exchange_all(*transport, 0, 100);
    if (transport->rank().value == 2) return;
    exchange_all(*transport, 1, 100);
  });
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (rank == 2) {
      EXPECT_FALSE(errors[rank]);
    } else {
      // A worker that noticed first may have left before others polled. They then report this
      // worker as lost.
      EXPECT_TRUE(is<PeerLostError>(errors[rank])) << rank << ": " << text_of(errors[rank]);
    }
  }
}

TEST_P(TransportSuite, a_worker_may_leave_while_its_message_is_pending) {
  const auto errors = run(2, [&](std::unique_ptr<Transport>& transport) {
    Taker taker(1);
    if (transport->rank().value == 0) {
      const std::vector<std::byte> data(kMoreThanIsUnderWay);
      post_send(*transport, Rank{1}, data, taker);
      transport.reset();
      ++counter();
      return;  // destroys the data of the pending send
    }
    wait_for_counter(1);
    const GroupId group = post_receive(*transport, Rank{0}, taker);
    transport->next(group, soon());
  });
  EXPECT_TRUE(is<PeerLostError>(errors[1])) << text_of(errors[1]);
}

TEST_P(TransportSuite, sent_memory_is_not_read_after_an_error) {
  const auto errors = run(3, [&](std::unique_ptr<Transport>& transport) {
    Taker taker(1);
    const int rank = transport->rank().value;
    if (rank == 0) {
      {
        const std::vector<std::byte> data(kMoreThanIsUnderWay);
        const std::array sends{Send{Rank{1}, data.data(), static_cast<std::int64_t>(data.size())}};
        const std::array receives{Receive{Rank{2}}};
        const GroupId group = transport->post(own_context(), {}, sends, receives, taker);
        EXPECT_THROW(transport->next(group, Clock::now() + std::chrono::milliseconds(50)),
                     DeadlineError);
      }
      ++counter();  // the data no longer exists, but the transport does
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return;
    }
    wait_for_counter(1);
    if (rank == 2) return;
    const GroupId group = post_receive(*transport, Rank{0}, taker);
    transport->next(group, soon());
  });
  EXPECT_FALSE(errors[0]) << text_of(errors[0]);
  EXPECT_TRUE(is<PeerLostError>(errors[1])) << text_of(errors[1]);
}

TEST_P(TransportSuite, the_memory_of_a_worker_that_left_is_not_written) {
  const auto errors = run(3, [&](std::unique_ptr<Transport>& transport) {
    Taker taker(2);
    if (const int rank = transport->rank().value; rank != 0) {
      const std::vector<std::byte> data(rank == 1 ? 100 : kMoreThanIsUnderWay, std::byte{7});
      if (rank == 1) wait_for_counter(1);  // wait until the long message is posted
      const GroupId group = post_send(*transport, Rank{0}, data, taker);
      if (rank == 2) ++counter();
      finish(*transport, group, soon());
      return;
    }
    const std::array receives{Receive{Rank{2}}, Receive{Rank{1}}};
    const GroupId group = transport->post(own_context(), {}, {}, receives, taker);
    ASSERT_TRUE(transport->next(group, soon()).has_value());
    transport.reset();  // during the long message, if the short one arrives before its end
    synchronize(own_context());
    std::vector<std::byte>& payload = taker.payloads[0];
    std::ranges::fill(payload, std::byte{0});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(std::ranges::count(payload, std::byte{0}), std::ssize(payload));
  });
  EXPECT_FALSE(errors[0]) << text_of(errors[0]);
  EXPECT_TRUE(!errors[2] || is<PeerLostError>(errors[2])) << text_of(errors[2]);
}

TEST_P(TransportSuite, abort_reaches_every_worker_that_waits_now_or_later) {
  const auto errors = run(4, [&](std::unique_ptr<Transport>& transport) {
    const int rank = transport->rank().value;
    if (rank == 3) {
      transport->abort("out of luck");
      return;
    }
    // The others wait in a cycle without the aborting worker, or in a chain that ends at it.
    const Rank next{GetParam().relays_aborts ? rank + 1 : (rank + 1) % 3};
    Taker taker(1);
    const GroupId group = post_receive(*transport, next, taker);
    transport->next(group, soon());
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(is<AbortedError>(errors[rank])) << text_of(errors[rank]);
    EXPECT_NE(text_of(errors[rank]).find("worker 3"), std::string::npos) << text_of(errors[rank]);
    EXPECT_NE(text_of(errors[rank]).find("out of luck"), std::string::npos)
        << text_of(errors[rank]);
  }
}

TEST_P(TransportSuite, a_long_reason_arrives_as_an_abort) {
  std::string reason = "x";  // truncation at even lengths would split a character
  for (int i = 0; i < 3000; ++i) reason += "\u00e9";
  const auto errors = run(2, [&](std::unique_ptr<Transport>& transport) {
    if (transport->rank().value == 1) {
      transport->abort(reason);
      return;
    }
    Taker taker(1);
    const GroupId group = post_receive(*transport, Rank{1}, taker);
    transport->next(group, soon());
  });
  EXPECT_TRUE(is<AbortedError>(errors[0])) << text_of(errors[0]);
  const std::string text = text_of(errors[0]);
  EXPECT_NE(text.find("worker 1 ended the session: x\u00e9\u00e9"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\u00e9\u00e9")) << text;
}

TEST_P(TransportSuite, an_exception_of_a_provider_is_reported) {
  class Budget : public ReceiveProvider {
   public:
    std::byte* provide(std::size_t, const Header& header) override {
      throw BudgetError(static_cast<std::int64_t>(header.bytes), 10, "test");
    }
  };
  const auto errors = run(2, [&](std::unique_ptr<Transport>& transport) {
    const std::vector<std::byte> data(100);
    const Rank peer{1 - transport->rank().value};
    const std::array sends{Send{peer, data.data(), std::int64_t{100}}};
    const std::array receives{Receive{peer}};
    Budget budget;
    const GroupId group = transport->post(own_context(), {}, sends, receives, budget);
    transport->next(group, soon());
  });
  EXPECT_TRUE(is<BudgetError>(errors[0]) || is<BudgetError>(errors[1]));
}

TEST_P(TransportSuite, an_all_reduce_sums_if_the_transport_has_one) {
  // One piece, several pieces, and none. Integer sums wrap.
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const std::size_t elements : {std::size_t{0}, std::size_t{5}, std::size_t{5'000'000}}) {
      if (elements > 5 && size > 2) continue;
      expect_no_errors(run(size, [&](std::unique_ptr<Transport>& transport) {
        const auto rank = static_cast<std::uint64_t>(transport->rank().value);
        std::vector<std::int64_t> numbers(elements);
        for (std::size_t i = 0; i < elements; ++i) {
          numbers[i] = static_cast<std::int64_t>(rank * i + (std::uint64_t{1} << 63U) - i);
        }
        const std::span<std::byte> bytes = std::as_writable_bytes(std::span(numbers));
        if (!transport->has_all_reduce()) {
          EXPECT_THROW(transport->all_reduce(own_context(), DType::i64, bytes, soon()),
                       ContractError);
          return;
        }
        transport->all_reduce(own_context(), DType::i64, bytes, soon());
        const auto workers = static_cast<std::uint64_t>(size);
        const std::uint64_t ranks = workers * (workers - 1) / 2;
        bool right = true;
        for (std::size_t i = 0; i < elements; ++i) {
          const std::uint64_t sum = ranks * i + workers * ((std::uint64_t{1} << 63U) - i);
          right = right && numbers[i] == static_cast<std::int64_t>(sum);
        }
        EXPECT_TRUE(right) << elements << " elements, " << size << " workers";
        EXPECT_EQ(transport->counters().bytes_sent,
                  all_reduce_bytes(static_cast<std::int64_t>(bytes.size()), size));
        EXPECT_EQ(transport->counters().messages_sent, 0);
      }));
    }
  }
}

TEST_P(TransportSuite, an_all_reduce_without_all_workers_is_a_typed_error) {
  for (const bool leaves : {false, true}) {
    const auto errors = run(3, [&](std::unique_ptr<Transport>& transport) {
      if (!transport->has_all_reduce()) return;
      if (transport->rank().value == 2) {
        if (!leaves) wait_for_counter(2);
        return;
      }
      std::vector<float> numbers(1000, 1);
      try {
        transport->all_reduce(own_context(), DType::f32, std::as_writable_bytes(std::span(numbers)),
                              leaves ? soon() : Clock::now() + std::chrono::milliseconds(300));
        ADD_FAILURE() << "the all-reduce succeeded without worker 2";
      } catch (const Error&) {
        ++counter();
        if (!leaves) wait_for_counter(2);  // the other worker must not lose this one
        throw;
      }
    });
    for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
      if (errors[0] == nullptr && errors[1] == nullptr) continue;  // no all-reduce here
      EXPECT_TRUE(leaves ? is<PeerLostError>(errors[rank]) : is<DeadlineError>(errors[rank]))
          << text_of(errors[rank]);
    }
  }
}

}  // namespace sparsesync::testing
