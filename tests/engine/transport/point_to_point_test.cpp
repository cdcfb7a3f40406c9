// ctest: SLOW SchemeSuite
// The transport over point-to-point calls: the conformance suites of transports and of schemes.
#include "sparsesync/transports/process_group.h"

#include <fmt/format.h>

#include "engine/transport/worker_threads.h"
#include "kernels/base/printable.h"
#include "schemes/exchange.h"
#include "tests/support/mailboxes.h"
#include "tests/support/scheme_suite.h"
#include "tests/support/transport_suite.h"

namespace sparsesync::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(mailboxes, TransportSuite, ::testing::Values(mailbox_workers()),
                         [](const auto& each) { return each.param.name; });

const std::array<std::vector<int>, 3> kSizes =
    kSanitized ? std::array<std::vector<int>, 3>{{{4}, {3}, {2}}}
               : std::array<std::vector<int>, 3>{{{1, 3, 4, 7}, {3}, {2}}};

INSTANTIATE_TEST_SUITE_P(mailboxes, SchemeSuite,
                         ::testing::ValuesIn(all_schemes_over(mailbox_workers(), 7, kSizes)),
                         [](const auto& each) { return each.param.variant.label; });

/// Runs two workers. Worker 0 uses a transport, and worker 1 uses bare point-to-point calls.
std::vector<std::exception_ptr> run_against_bare_calls(
    const std::function<void(Transport&)>& as_transport,
    const std::function<void(PointToPoint&)>& as_calls) {
  const auto boxes = std::make_shared<Mailboxes>(2);
  std::vector<std::unique_ptr<PointToPoint>> ends;
  for (int rank = 0; rank < 2; ++rank) ends.push_back(Mailboxes::end(boxes, Rank{rank}));
  std::vector<std::unique_ptr<Transport>> none(2);
  return run_in_threads(std::move(none), [&](std::unique_ptr<Transport>&, std::size_t rank) {
    if (rank == 1) return as_calls(*ends[1]);
    as_transport(*transport_over(std::move(ends[0]), Rank{0}, {0, 0}));
  });
}

void send(PointToPoint& network, PointToPoint::Lane lane, std::span<const std::byte> bytes) {
  std::vector<PointToPoint::Call> started;
  network.start({}, std::array{PointToPoint::Outgoing{Rank{0}, lane, bytes}}, started);
}

/// Returns a header with the beginning of its payload, as they are sent.
std::array<std::byte, 2048> front_of(const Header& header, std::span<const std::byte> payload) {
  std::array<std::byte, 2048> front{};
  std::memcpy(front.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), front.begin() + sizeof(header));
  return front;
}

/// Returns the exception of `worker` if the other worker sends this header with a short payload or,
/// on another lane, these bytes.
std::exception_ptr error_of(const std::function<void(Transport&)>& worker, const Header& header,
                            PointToPoint::Lane lane, std::span<const std::byte> bytes) {
  using Lane = PointToPoint::Lane;
  const bool is_payload = lane == Lane::payloads;
  const auto front = front_of(header, is_payload ? bytes : std::span<const std::byte>());
  const auto errors = run_against_bare_calls(worker, [&](PointToPoint& network) {
    std::array<std::byte, 1040> farewell{};
    std::vector<PointToPoint::Call> left;
    network.start(std::array{PointToPoint::Incoming{Rank{0}, Lane::reasons, farewell}}, {}, left);
    if (!is_payload) send(network, lane, bytes);
    send(network, Lane::headers, front);
    network.wait(left, soon());
  });
  return errors[0];
}

void receive_one(Transport& transport) {
  HostMemory memory;
  Taker taker(1);
  const GroupId group =
      transport.post(Context(memory), {}, {}, std::array{Receive{Rank{1}}}, taker);
  transport.next(group, soon());
}

struct ReasonOnTheWire {
  std::uint32_t aborter = 0;
  std::uint32_t bytes = 0;
  std::array<char, 1024> text{};
  std::uint64_t seal = 0x6E6F'7361'6572'2100U;
};

ReasonOnTheWire reason_of(std::uint32_t aborter, std::string_view text) {
  ReasonOnTheWire reason{aborter, static_cast<std::uint32_t>(text.size())};
  std::copy(text.begin(), text.end(), reason.text.begin());
  return reason;
}

TEST(PointToPoint, a_malformed_abort_is_handled) {
  constexpr std::uint32_t kAbort = 0xFFFF'FFFFU;
  const auto error = [](const Header& header, const ReasonOnTheWire& reason) {
    return error_of(receive_one, header, PointToPoint::Lane::reasons,
                    std::as_bytes(std::span(&reason, 1)));
  };
  const std::exception_ptr told = error({kAbort, 1, 0, 0, 0}, reason_of(1, "a fox"));
  EXPECT_TRUE(is<AbortedError>(told)) << text_of(told);
  EXPECT_NE(text_of(told).find("worker 1 ended the session: a fox"), std::string::npos);
  ReasonOnTheWire endless = reason_of(1, "a fox");
  endless.bytes = 1025;
  ReasonOnTheWire torn = reason_of(1, "a fox");
  torn.seal = 0;
  for (const auto& [header, reason] :
       {std::pair{Header{kAbort, 2, 0, 0, 0}, reason_of(1, "nobody's")},
        std::pair{Header{kAbort, 0, 0, 0, 0}, reason_of(1, "this worker's")},
        std::pair{Header{kAbort, 1, 0, 0, 1ULL << 40U}, reason_of(1, "with a payload")},
        std::pair{Header{kAbort, 1, 0, 0, 0}, reason_of(2, "nobody's")},
        std::pair{Header{kAbort, 1, 0, 0, 0}, reason_of(0, "this worker's")},
        std::pair{Header{kAbort, 1, 0, 0, 0}, endless},
        std::pair{Header{kAbort, 1, 0, 0, 0}, torn}}) {
    const std::exception_ptr lie = error(header, reason);
    EXPECT_TRUE(is<ProtocolError>(lie)) << text_of(lie);
  }
}

/// Runs a step of an exchange with worker 1, or refuses it if `refuses`.
void step_with_one(Transport& transport, bool refuses) {
  HostMemory memory;
  const Context context(memory);
  const Pattern pattern{{{}, {Rank{1}}}};
  std::uint64_t sequence = 0;
  ExchangeWorkspace workspace;
  Exchange exchange(transport, context, {1, 2, 5000}, sequence, pattern, 1, kDeadline, workspace);
  if (refuses)
    return exchange.refuse(Rank{0}, "too large", [](Round, std::size_t) { return std::size_t{1}; });
  Inbox inbox(context, 1);
  inbox.set_limit(100);
  exchange.step({}, inbox, [](Rank, std::span<const std::byte>) {});
}

/// Refuses a step as worker 1, which sends to worker 0.
void refuse_to_zero(Transport& transport, const std::string& reason) {
  HostMemory memory;
  const Context context(memory);
  const Pattern pattern{{{Rank{0}}, {}}};
  std::uint64_t sequence = 0;
  ExchangeWorkspace workspace;
  Exchange exchange(transport, context, {1, 2, 5000}, sequence, pattern, 1, kDeadline, workspace);
  exchange.refuse(Rank{1}, reason, [](Round, std::size_t) { return std::size_t{1}; });
}

TEST(PointToPoint, a_refusal_names_a_worker_that_may_have_refused) {
  const auto error = [](std::uint32_t who, std::size_t bytes) {
    std::vector<std::byte> refusal(bytes);
    std::memcpy(refusal.data(), &who, std::min(bytes, sizeof(who)));
    return error_of([](Transport& transport) { step_with_one(transport, false); },
                    {1, Header::kLast | Header::kRefused, 0, 2, bytes},
                    PointToPoint::Lane::payloads, refusal);
  };
  EXPECT_TRUE(is<RefusedError>(error(1, 8)));
  for (const std::uint32_t who : {0U, 2U, 0x8000'0000U, 0xFFFF'FFFFU}) {
    const std::exception_ptr lie = error(who, 8);
    EXPECT_TRUE(is<ProtocolError>(lie)) << text_of(lie);
    EXPECT_NE(text_of(lie).find("worker 1 sent a refusal"), std::string::npos) << text_of(lie);
  }
  EXPECT_TRUE(is<ProtocolError>(error(1, 3)));
}

TEST(PointToPoint, an_impossible_payload_is_also_detected_while_refusing) {
  for (const std::uint64_t bytes :
       {std::uint64_t{5001}, std::uint64_t{1} << 63U, ~std::uint64_t{0}}) {
    const std::exception_ptr lie =
        error_of([](Transport& transport) { step_with_one(transport, true); },
                 {1, Header::kLast, 0, 2, bytes}, PointToPoint::Lane::payloads, {});
    EXPECT_TRUE(is<CorruptDataError>(lie)) << text_of(lie);
  }
}

/// Forwards to another network, counts the calls, and lets one of them fail.
class Watched : public PointToPoint {
 public:
  /// @param failing  the number of the call that fails, from 1; 0 for none
  Watched(std::unique_ptr<PointToPoint> network, int failing)
      : network_(std::move(network)), failing_(failing) {}

  void start(std::span<const Incoming> receives, std::span<const Outgoing> sends,
             std::vector<Call>& started) override {
    for (const Incoming& receive : receives) {
      if (++calls == failing_) throw PeerLostError(receive.from, "a receive that fails");
      largest_received = std::max(largest_received, receive.bytes.size());
      network_->start({&receive, 1}, {}, started);
    }
    for (const Outgoing& send : sends) {
      if (++calls == failing_) throw PeerLostError(send.to, "a send that fails");
      network_->start({}, {&send, 1}, started);
    }
  }
  Waited wait(std::span<const Call> waited, Clock::time_point until) override {
    for (std::size_t i = 0; i < waited.size(); ++i) {
      if (++calls == failing_) return {Outcome::lost, i};
      const Outcome outcome = network_->wait(waited.subspan(i, 1), until).outcome;
      if (outcome != Outcome::done) return {outcome, i};
    }
    return {Outcome::done, waited.size()};
  }
  void withdraw() noexcept override { network_->withdraw(); }
  bool has_all_reduce() const override { return false; }
  Outcome all_reduce(DType, std::span<std::byte>, Clock::time_point) override {
    throw ContractError("there is none");
  }

  int calls = 0;
  std::size_t largest_received = 0;

 private:
  std::unique_ptr<PointToPoint> network_;
  int failing_;
};

/// Runs two steps between `size` workers that are connected by Mailboxes. A call of worker 0 fails.
/// @return the number of calls of worker 0, and the exception of each worker
std::pair<int, std::vector<std::exception_ptr>> run_with_failing_call(int size, int failing) {
  const auto boxes = std::make_shared<Mailboxes>(size);
  const std::vector<int> nodes(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<Transport>> ends;
  auto watched = std::make_unique<Watched>(Mailboxes::end(boxes, Rank{0}), failing);
  Watched& of_first = *watched;
  ends.push_back(transport_over(std::move(watched), Rank{0}, nodes));
  for (int rank = 1; rank < size; ++rank) {
    ends.push_back(transport_over(Mailboxes::end(boxes, Rank{rank}), Rank{rank}, nodes));
  }
  int calls = 0;
  auto errors = run_in_threads(std::move(ends), [&](std::unique_ptr<Transport>& end, std::size_t) {
    try {
      for (int step = 0; step < 2; ++step) exchange_all(*end, step, 5000);
    } catch (const Error& error) {
      end->abort(error.what());
      if (end->rank() == Rank{0}) calls = of_first.calls;
      throw;
    }
    if (end->rank() == Rank{0}) calls = of_first.calls;
  });
  return {calls, std::move(errors)};
}

TEST(PointToPoint, a_failed_call_causes_an_abort_with_its_reason_on_the_other_worker) {
  const int calls = run_with_failing_call(2, 0).first;
  EXPECT_GT(calls, 12);
  // The first call waits for the reason of the other worker, which never sends one.
  for (int failing = 2; failing <= calls; ++failing) {
    const auto errors = run_with_failing_call(2, failing).second;
    EXPECT_TRUE(is<PeerLostError>(errors[0])) << failing << ": " << text_of(errors[0]);
    if (!errors[1])
      // Worker 1 had received everything before worker 0 failed in its last waits.
      continue;
    EXPECT_TRUE(is<AbortedError>(errors[1])) << failing << ": " << text_of(errors[1]);
    EXPECT_NE(
        text_of(errors[1]).find(fmt::format("worker 0 ended the session: {}", text_of(errors[0]))),
        std::string::npos)
        << failing << ": " << text_of(errors[1]);
  }
}

TEST(PointToPoint, a_failed_call_causes_an_abort_on_all_other_workers) {
  const int calls = run_with_failing_call(3, 0).first;
  for (int failing = 3; failing <= calls; failing += 9) {
    const auto errors = run_with_failing_call(3, failing).second;
    EXPECT_TRUE(is<PeerLostError>(errors[0])) << failing << ": " << text_of(errors[0]);
    for (const std::size_t rank : {std::size_t{1}, std::size_t{2}}) {
      EXPECT_TRUE(!errors[rank] || is<AbortedError>(errors[rank]))
          << failing << ": " << text_of(errors[rank]);
    }
  }
}

TEST(PointToPoint, a_discarded_payload_takes_the_memory_of_one_piece) {
  constexpr std::size_t kBytes = (std::size_t{13} << 20U) + 5;
  class Thrower : public ReceiveProvider {
   public:
    std::byte* provide(std::size_t, const Header&) override { return nullptr; }
  };
  const auto boxes = std::make_shared<Mailboxes>(2);
  auto watched = std::make_unique<Watched>(Mailboxes::end(boxes, Rank{0}), 0);
  const Watched& calls = *watched;
  std::vector<std::unique_ptr<Transport>> ends;
  ends.push_back(transport_over(std::move(watched), Rank{0}, {0, 0}));
  ends.push_back(transport_over(Mailboxes::end(boxes, Rank{1}), Rank{1}, {0, 0}));
  std::size_t largest = 0;
  expect_no_errors(
      run_in_threads(std::move(ends), [&](std::unique_ptr<Transport>& end, std::size_t rank) {
        const std::vector<std::byte> data(rank == 1 ? kBytes : 0, std::byte{7});
        Thrower thrower;
        Taker unused(0);
        const std::array sends{Send{Rank{0}, data.data(), static_cast<std::int64_t>(data.size())}};
        const GroupId group =
            rank == 1 ? end->post(own_context(), {}, sends, {}, unused)
                      : end->post(own_context(), {}, {}, std::array{Receive{Rank{1}}}, thrower);
        while (const auto arrival = end->next(group, soon())) {
          EXPECT_EQ(arrival->header.bytes, kBytes);
          EXPECT_TRUE(arrival->payload.empty());
          largest = calls.largest_received;
        }
        end->finish(group, soon());
        exchange_all(*end, 1, 1'000'000);  // its pieces are joined again
      }));
  EXPECT_EQ(largest, std::size_t{4} << 20U);
}

TEST(PointToPoint, a_size_in_a_header_alone_allocates_no_memory) {
  class Thrower : public ReceiveProvider {
   public:
    std::byte* provide(std::size_t, const Header&) override { return nullptr; }
  };
  for (const std::uint64_t bytes : {std::uint64_t{1} << 63U, ~std::uint64_t{0}}) {
    const auto boxes = std::make_shared<Mailboxes>(2);
    const std::unique_ptr<PointToPoint> liar = Mailboxes::end(boxes, Rank{1});
    // The first call after the header, which receives the first piece of the payload.
    constexpr int kOfFirstPiece = 4;
    const std::unique_ptr<Transport> end = transport_over(
        std::make_unique<Watched>(Mailboxes::end(boxes, Rank{0}), kOfFirstPiece), Rank{0}, {0, 0});
    const auto front = front_of({0, 0, 0, 0, bytes}, {});
    send(*liar, PointToPoint::Lane::headers, front);
    Thrower thrower;
    const GroupId group = end->post(own_context(), {}, {}, std::array{Receive{Rank{1}}}, thrower);
    try {
      end->next(group, soon());
      ADD_FAILURE() << "no error";
    } catch (const PeerLostError& error) {
      EXPECT_STREQ(error.what(), "a receive that fails");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Exchange, a_long_reason_of_a_refusal_is_truncated_between_characters) {
  std::string reason = "x";  // the other characters start at odd offsets and end at even ones
  for (int i = 0; i < 3000; ++i) reason += "\u00e9";
  const auto boxes = std::make_shared<Mailboxes>(2);
  std::vector<std::unique_ptr<Transport>> ends;
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    ends.push_back(transport_over(Mailboxes::end(boxes, rank), rank, {0, 0}));
  }
  const auto errors =
      run_in_threads(std::move(ends), [&](std::unique_ptr<Transport>& end, std::size_t rank) {
        if (rank == 0) return step_with_one(*end, false);
        refuse_to_zero(*end, reason);
      });
  EXPECT_TRUE(is<RefusedError>(errors[0])) << text_of(errors[0]);
  const std::string text = text_of(errors[0]);
  EXPECT_TRUE(text.starts_with("worker 1 refused the step: x\u00e9\u00e9")) << text;
  EXPECT_TRUE(text.ends_with("\u00e9\u00e9")) << text;
}

TEST(WholeCharacters, a_text_is_truncated_between_characters) {
  const std::string text = "a\u00e9\u20ac\U0001F98A";  // characters of 1, 2, 3 and 4 bytes
  const std::array<std::size_t, 11> kept{0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (std::size_t bytes = 0; bytes < kept.size(); ++bytes) {
    EXPECT_EQ(whole_characters(text, bytes).size(), kept[bytes]) << bytes;
  }
  EXPECT_EQ(whole_characters(text, 100), text);
  const std::string other(9, '\x80');
  EXPECT_EQ(whole_characters(other, 5).size(), 5U);
}

}  // namespace
}  // namespace sparsesync::testing
